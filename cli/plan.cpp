// `flashrel plan`: how a case would run on this machine or on one that is not there.
#include <fmt/format.h>

#include <algorithm>

#include "api/describe.hpp"
#include "api/device.hpp"
#include "backend/backend.hpp"
#include "cli/ceilings.hpp"
#include "cli/commands.hpp"
#include "cli/drawing.hpp"
#include "cli/source.hpp"
#include "cli/text.hpp"
#include "plan/cost.hpp"
#include "plan/make_plan.hpp"

namespace flashrel::cli {
namespace {

// Nominal figures of the vendors' data sheets (dense bf16, memory bandwidth), for predicted times only.
struct KnownDevice {
  const char *key, *name;
  int major, minor, n_sms, smem_kib;
  double gb_per_s, tflop_per_s;
};
constexpr KnownDevice kKnown[] = {
    {"sm80", "A100 SXM 80 GB", 8, 0, 108, 163, 2039, 312},
    {"sm86", "RTX 3090", 8, 6, 82, 99, 936, 71},
    {"sm89", "L40S", 8, 9, 142, 99, 864, 362},
    {"sm90", "H200 SXM", 9, 0, 132, 227, 4800, 989},
    {"sm100", "B200", 10, 0, 148, 227, 8000, 2250},
    {"sm120", "RTX PRO 6000 Blackwell", 12, 0, 188, 99, 1792, 504},
};

Status find_device(const std::string& key, Device& device) {
  if (key == "cpu") {
    device = host_device();
    return {};
  }
  if (key == "here") {
    std::string reason;
    const std::vector<Device> gpus = cuda_devices(reason);
    device = gpus.empty() ? host_device() : gpus[0];
    return {};
  }
  for (const KnownDevice& known : kKnown)
    if (key == known.key) {
      device = Device{};
      device.memory = MemoryKind::kCuda;
      device.name = known.name;
      device.capability_major = known.major;
      device.capability_minor = known.minor;
      device.n_sms = known.n_sms;
      device.max_smem_bytes = known.smem_kib * 1024;
      device.read_gb_per_s = known.gb_per_s;
      device.matrix_tflop_per_s = known.tflop_per_s;
      return {};
    }
  std::string names;
  for (const std::string& name : device_names()) names += (names.empty() ? "" : ", ") + name;
  return invalid("--device: got '" + key + "', expected one of " + names);
}

std::vector<Lengths> lengths_of(const Call& call) {
  std::vector<Lengths> batch;
  const Strides& s = call.problem.strides;
  for (int seq = 0; seq < call.problem.n_seqs; ++seq)
    batch.push_back({call.tensors.cu_seqlens_q[(seq + 1) * s.cu_q_seq] - call.tensors.cu_seqlens_q[seq * s.cu_q_seq],
                     call.tensors.cache_seqlens[seq * s.kv_len_seq]});
  return batch;
}

void print_route(const Plan& plan, const Problem& problem, const Device& device) {
  const std::string kind = device.memory == MemoryKind::kHost ? fmt::format("{} threads, {}", device.n_threads, device.cpu_isa)
                                                              : fmt::format("sm_{}, {} SMs", device.capability(), device.n_sms);
  fmt::print("device     {} ({})\n", device.name, kind);
  fmt::print("backend    {}, policy {}, bias {}, route {}\n", plan.backend->name, plan.policy.name, name_of(problem.bias),
             name_of(plan.policy.route));
  for (const Refusal& refusal : plan.considered)
    fmt::print("             {:<6} {}\n", refusal.backend, refusal.reason.empty() ? "serves" : "refuses: " + refusal.reason);
}

void print_schedule(const Plan& plan, const std::vector<Lengths>& batch) {
  const ScheduleShape& s = plan.schedule;
  std::int64_t n_items = 0;
  int most_parts = 1;
  const auto count = [&](const WorkItem& item) {
    ++n_items;
    most_parts = std::max(most_parts, item.n_parts);
  };
  const int n_slots = build_schedule(s, [&](int seq) { return batch[static_cast<std::size_t>(seq)]; }, count);
  fmt::print("tiles      {} rows (tokens x group {}) x {} keys\n", s.tile_rows, s.group, s.tile_keys);
  const std::string rule = s.max_parts > 0              ? fmt::format("num_splits: at most {}", s.max_parts)
                           : s.fixed_tiles_per_part > 0 ? fmt::format("deterministic: {} tiles a part", s.fixed_tiles_per_part)
                           : s.n_shares > 0     ? std::string("automatic: an equal share of the key tiles for each worker")
                           : s.target_parts > 0 ? fmt::format("automatic: about {} parts in the batch", s.target_parts)
                                                : std::string("never");
  fmt::print("splits     {}\n", rule);
  fmt::print("schedule   {} work items for {} workers, at most {} parts a unit, {} part slots (booked {})\n", n_items,
             plan.policy.n_workers, most_parts, n_slots, plan.bounds.n_slots);
}

void print_ledger(std::string_view name, const Workspace& memory) {
  fmt::print("{:<10} {}\n", name, bytes_text(static_cast<double>(memory.total_bytes())));
  for (const Workspace::Entry& entry : memory.entries())
    fmt::print("             {:<15} {:>12} at {}\n", entry.name, bytes_text(static_cast<double>(entry.bytes)), entry.offset);
}

void print_cost(const Plan& plan, const Problem& problem, const Device& device) {
  print_ledger("workspace", plan.workspace);
  print_ledger("+ schedule", plan.schedule_memory);
  const Cost cost = estimate_cost(problem, device);
  fmt::print("work       {}FLOP, {} moved once; {:.1f} FLOP a byte\n", count_text(cost.flops), bytes_text(cost.bytes),
             cost.bytes > 0 ? cost.flops / cost.bytes : 0.0);
  if (cost.bound_us <= 0) {
    fmt::print("bound      unknown: no ceilings are known for this device; --measure measures the CPU's\n");
    return;
  }
  const bool memory = cost.bytes / device.read_gb_per_s * 1e-3 >= cost.flops / device.matrix_tflop_per_s * 1e-6;
  fmt::print("bound      {} at least, by {} ({:.0f} GB/s, {:.3g} TFLOP/s {})\n", time_text(cost.bound_us),
             memory ? "memory" : "matrix units", device.read_gb_per_s, device.matrix_tflop_per_s,
             device.memory == MemoryKind::kHost ? "measured" : "nominal");
  const CostModel& model = plan.policy.cost;
  const double predicted = predict_us(model, cost.flops, cost.bytes, device);
  if (predicted > 0)
    fmt::print(
        "predicted  {}: {} and {:.0f} % of the read bandwidth or {:.0f} % of the matrix rate; bench has it beside the time\n",
        time_text(predicted), time_text(model.fixed_us), 100 * model.read_share, 100 * model.matrix_share);
}

int heaviest(const std::vector<Lengths>& batch) {
  const auto work = [](Lengths l) { return static_cast<double>(l.q_len) * l.kv_len; };
  const auto at = std::max_element(batch.begin(), batch.end(), [&](Lengths a, Lengths b) { return work(a) < work(b); });
  return static_cast<int>(at - batch.begin());
}

Status draw(const PlanOptions& options, const Problem& problem, const Plan& plan, const std::vector<Lengths>& batch,
            const std::string& title) {
  if (batch.empty()) return {};
  const int seq = options.seq >= 0 ? options.seq : heaviest(batch);
  if (seq >= static_cast<int>(batch.size()))
    return invalid(fmt::format("--seq: got {}, expected less than {}", seq, batch.size()));
  const Lengths lengths = batch[static_cast<std::size_t>(seq)];
  fmt::print("\nsequence {} of {}: {} rows on {} keys\n{}", seq, batch.size(), lengths.q_len, lengths.kv_len,
             draw_text(make_tile_map(problem, plan, batch, seq, 24, 96)));
  if (options.svg.empty()) return {};
  const std::string svg = draw_svg(make_tile_map(problem, plan, batch, seq, 96, 192), title);
  FLASHREL_RETURN_IF_ERROR(write_text_file(options.svg, svg));
  fmt::print("{}: the same as a picture\n", options.svg);
  return {};
}

Status plan_or_error(const PlanOptions& options) {
  check::HostProblem host;
  Device device;
  Call call;
  Plan plan;
  FLASHREL_RETURN_IF_ERROR(load_outline(options.words, host));
  FLASHREL_RETURN_IF_ERROR(find_device(options.device, device));
  MemoryKind memory = device.memory;
  if (options.device == "here" && options.backend != "auto" && check::memory_of_backend(options.backend, memory))
    FLASHREL_RETURN_IF_ERROR(find_device(memory == MemoryKind::kHost ? "cpu" : "here", device));
  host.args.memory = static_cast<std::int32_t>(device.memory);
  host.args.backend = options.backend.c_str();
  host.args.route = options.route.c_str();
  if (options.num_splits >= 0) host.args.num_splits = static_cast<std::int32_t>(options.num_splits);
  FLASHREL_RETURN_IF_ERROR(validate(host.args, call));
  FLASHREL_RETURN_IF_ERROR(make_plan(call.problem, device, call.options, plan));
  if (options.json) {
    fmt::print("{}\n", describe_plan(call.problem, device, plan));
    return {};
  }
  if (options.measure && device.memory == MemoryKind::kHost) {
    const Ceilings ceilings = measure_ceilings(MemoryKind::kHost);
    device.read_gb_per_s = ceilings.read_gb_per_s;
    device.matrix_tflop_per_s = ceilings.matrix_tflop_per_s;
  }
  const std::vector<Lengths> batch = lengths_of(call);
  fmt::print("case       {}\n", host.label);
  print_route(plan, call.problem, device);
  print_schedule(plan, batch);
  for (const Plan& few : plan.few_rows) {
    fmt::print("few rows   sequences of at most {} rows: policy {}\n", plan.policy.few_rows, few.policy.name);
    print_schedule(few, batch);
  }
  print_cost(plan, call.problem, device);
  return draw(options, call.problem, plan, batch, host.label);
}

}  // namespace

std::vector<std::string> device_names() {
  std::vector<std::string> names = {"here", "cpu"};
  for (const KnownDevice& known : kKnown) names.push_back(known.key);
  return names;
}

int plan(const PlanOptions& options) {
  const Status status = plan_or_error(options);
  return status.ok() ? kFine : fail(status);
}

}  // namespace flashrel::cli
