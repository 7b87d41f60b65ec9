#include "api/describe.hpp"

#include "api/device.hpp"
#include "api/json.hpp"
#include "backend/backend.hpp"
#include "backend/cpu/cpu.hpp"
#include "flashrel/flashrel.h"
#include "plan/cost.hpp"

namespace flashrel {
namespace {

void write_considered(Json& json, const Plan& plan) {
  json.begin_array("considered");
  for (const Refusal& refusal : plan.considered)
    json.begin_object()
        .text("backend", refusal.backend)
        .boolean("serves", refusal.reason.empty())
        .text("reason", refusal.reason)
        .end_object();
  json.end_array();
}

void write_policy(Json& json, const Policy& policy) {
  json.begin_object("policy")
      .text("name", policy.name)
      .integer("tile_rows", policy.tile_rows)
      .integer("tile_keys", policy.tile_keys)
      .integer("n_workers", policy.n_workers)
      .integer("stages", policy.stages)
      .end_object();
}

void write_schedule(Json& json, const Plan& plan) {
  const ScheduleShape& s = plan.schedule;
  const char* rule = s.fixed_tiles_per_part > 0 ? "deterministic"
                     : s.max_parts > 0          ? "num_splits"
                     : s.n_shares > 0           ? "equal shares"
                     : s.target_parts > 0       ? "automatic"
                                                : "never";
  json.begin_object("splits")
      .text("rule", rule)
      .integer("max_parts", s.max_parts)
      .integer("fixed_tiles_per_part", s.fixed_tiles_per_part)
      .integer("target_parts", s.target_parts)
      .integer("min_tiles_per_part", s.min_tiles_per_part)
      .end_object();
  json.integer("max_items", plan.bounds.n_items).integer("max_part_slots", plan.bounds.n_slots);
}

void write_ledger(Json& json, std::string_view name, const Workspace& workspace) {
  json.begin_object(name).integer("bytes", static_cast<std::int64_t>(workspace.total_bytes())).begin_array("entries");
  for (const Workspace::Entry& entry : workspace.entries())
    json.begin_object()
        .text("name", entry.name)
        .integer("offset", static_cast<std::int64_t>(entry.offset))
        .integer("bytes", static_cast<std::int64_t>(entry.bytes))
        .end_object();
  json.end_array().end_object();
}

void write_backends(Json& json) {
  json.begin_array("backends");
  for (const MemoryKind memory : {MemoryKind::kHost, MemoryKind::kCuda})
    for (const Backend* backend : backends_for(memory)) {
      const std::string reason = backend->off_reason();
      json.begin_object()
          .text("name", backend->name)
          .text("memory", memory == MemoryKind::kHost ? "host" : "cuda")
          .boolean("on", reason.empty())
          .text("reason", reason)
          .end_object();
    }
  json.end_array();
}

}  // namespace

std::string describe_plan(const Problem& problem, const Device& device, const Plan& plan) {
  Json json;
  json.begin_object().text("device", device.name).text("backend", plan.backend ? plan.backend->name : "");
  write_considered(json, plan);
  json.text("bias", name_of(problem.bias)).text("route", name_of(plan.policy.route));
  write_policy(json, plan.policy);
  write_schedule(json, plan);
  for (const Plan& few : plan.few_rows) {
    json.begin_object("few_rows").integer("at_most", plan.policy.few_rows);
    write_policy(json, few.policy);
    write_schedule(json, few);
    json.end_object();
  }
  write_ledger(json, "workspace", plan.workspace);
  write_ledger(json, "schedule_memory", plan.schedule_memory);
  const Cost cost = estimate_cost(problem, device);
  json.number("flops", cost.flops)
      .number("bytes", cost.bytes)
      .number("bound_us", cost.bound_us)
      .number("predicted_us", predict_us(plan.policy.cost, cost.flops, cost.bytes, device));
  return json.end_object().str();
}

std::string describe_build() {
  Json json;
  json.begin_object().text("version", flashrel_version());
#if defined(FLASHREL_WITH_CUDA)
  json.boolean("cuda_build", true);
#else
  json.boolean("cuda_build", false);
#endif
  const Device host = host_device();
  json.begin_object("cpu").integer("threads", host.n_threads).text("isa", host.cpu_isa).begin_array("isas");
  for (const cpu::IsaState& isa : cpu::isa_states())
    json.begin_object().text("name", isa.name).boolean("usable", isa.reason.empty()).text("reason", isa.reason).end_object();
  json.end_array().end_object();

  std::string reason;
  json.begin_array("gpus");
  for (const Device& gpu : cuda_devices(reason))
    json.begin_object()
        .integer("ordinal", gpu.ordinal)
        .text("name", gpu.name)
        .integer("capability", gpu.capability())
        .integer("sms", gpu.n_sms)
        .number("nominal_read_gb_per_s", gpu.read_gb_per_s)
        .number("nominal_matrix_tflop_per_s", gpu.matrix_tflop_per_s)
        .end_object();
  json.end_array().text("gpus_reason", reason);
  write_backends(json);
  return json.end_object().str();
}

}  // namespace flashrel
