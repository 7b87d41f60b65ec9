// The C ABI: one way in. Every function catches everything, keeps its sentence per thread and returns a code.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <string>

#include "api/describe.hpp"
#include "api/device.hpp"
#include "api/run.hpp"
#include "api/seed.hpp"
#include "api/validate.hpp"
#include "backend/backend.hpp"
#include "backend/cpu/cpu.hpp"
#include "base/parallel.hpp"
#include "combine/combine.hpp"
#include "flashrel/flashrel.h"
#include "plan/make_plan.hpp"

namespace flashrel {
namespace {

thread_local std::string last_error;

// Runs `body`, stores its sentence, returns its code.
template <class Body>
flashrel_code guarded(Body&& body) noexcept {
  Status status;
  try {
    status = body();
  } catch (const std::bad_alloc&) {
    status = {Code::kRuntime, "out of host memory"};
  } catch (const std::exception& error) {
    status = {Code::kRuntime, error.what()};
  }
  last_error = std::move(status.text);
  return static_cast<flashrel_code>(status.code);
}

// The caller's struct, extended with zeros when it is older than this library.
template <class Args>
Status read_args(const Args* given, Args& args) {
  if (given == nullptr) return invalid("args: got a null pointer");
  if (given->struct_size < sizeof(std::size_t) + sizeof(std::int32_t))
    return invalid("args.struct_size: got " + std::to_string(given->struct_size) +
                   ", expected sizeof the struct; use its init function");
  std::memset(static_cast<void*>(&args), 0, sizeof args);
  std::memcpy(static_cast<void*>(&args), given, std::min(given->struct_size, sizeof args));
  return {};
}

struct PlannedCall : Call {
  Device device;
  Plan plan;
  void* shared_schedule = nullptr;
  std::size_t needed_bytes() const { return workspace_bytes(plan, shared_schedule != nullptr); }
};

Status check_memory(const char* name, const void* memory, std::size_t bytes, std::size_t needed) {
  if (needed == 0) return {};
  const std::string argument = name;
  if (memory == nullptr)
    return workspace_error(argument + ": got a null pointer, expected " + std::to_string(needed) + " bytes");
  if (bytes < needed)
    return workspace_error(argument + "_bytes: got " + std::to_string(bytes) + ", expected at least " + std::to_string(needed));
  if (reinterpret_cast<std::uintptr_t>(memory) % Workspace::kAlignment != 0)
    return workspace_error(argument + ": got an address that is not a multiple of " + std::to_string(Workspace::kAlignment));
  return {};
}

Status share_schedule(const flashrel_schedule_buffer* schedule, PlannedCall& call) {
  if (schedule == nullptr) return {};
  if (schedule->key != schedule_key(call.problem, call.plan))
    return invalid(
        "schedule: got one that flashrel_schedule did not make for these shapes, bounds, masks and options, "
        "expected one of an equal plan");
  FLASHREL_RETURN_IF_ERROR(check_memory("schedule", schedule->data, schedule->bytes, call.plan.schedule_memory.total_bytes()));
  call.shared_schedule = schedule->data;
  return {};
}

enum class Purpose { kPlan, kSchedule, kRun };

Status prepare(const flashrel_attention_args* given, Purpose purpose, PlannedCall& call) {
  flashrel_attention_args args;
  FLASHREL_RETURN_IF_ERROR(read_args(given, args));
  FLASHREL_RETURN_IF_ERROR(validate(args, call));
  if (call.problem.memory == MemoryKind::kCuda) {
    FLASHREL_RETURN_IF_ERROR(cuda_device(args.device, call.device));
  } else {
    if (std::string error = cpu::isa_error(); !error.empty()) return invalid(error);
    call.device = host_device();
    if (purpose != Purpose::kPlan || args.validate == 1) FLASHREL_RETURN_IF_ERROR(validate_lengths(call.problem, call.tensors));
    if (args.validate == 1) FLASHREL_RETURN_IF_ERROR(validate_pages(call.problem, call.tensors));
  }
  FLASHREL_RETURN_IF_ERROR(make_plan(call.problem, call.device, call.options, call.plan));
  return purpose == Purpose::kSchedule ? Status{} : share_schedule(args.schedule, call);
}

// Calls body() with the call's device current.
template <class Body>
Status on_device(const PlannedCall& call, Body&& body) {
  if (call.problem.memory == MemoryKind::kHost) return body();
#if defined(FLASHREL_WITH_CUDA)
  const CurrentCudaDevice current(call.device.ordinal);
  return body();
#else
  return runtime_error("memory: got CUDA in a build without GPU backends");
#endif
}

bool is_empty(const Problem& problem) { return problem.n_seqs == 0 || problem.n_tokens == 0; }

Status copy_text(const std::string& from, char* text, std::size_t capacity, std::size_t* needed) {
  if (needed != nullptr) *needed = from.size() + 1;
  if (text == nullptr || capacity == 0) return {};
  const std::size_t n = std::min(capacity - 1, from.size());
  std::memcpy(text, from.data(), n);
  text[n] = '\0';
  return {};
}

}  // namespace
}  // namespace flashrel

using namespace flashrel;

extern "C" {

const char* flashrel_last_error(void) { return last_error.c_str(); }

#define FLASHREL_TEXT_OF(x) #x
#define FLASHREL_TEXT(x) FLASHREL_TEXT_OF(x)
const char* flashrel_version(void) {
  return FLASHREL_TEXT(FLASHREL_VERSION_MAJOR) "." FLASHREL_TEXT(FLASHREL_VERSION_MINOR) "." FLASHREL_TEXT(
      FLASHREL_VERSION_PATCH);
}

flashrel_code flashrel_attention_workspace(const flashrel_attention_args* args, size_t* bytes) {
  return guarded([&]() -> Status {
    if (bytes == nullptr) return invalid("bytes: got a null pointer");
    PlannedCall call;
    FLASHREL_RETURN_IF_ERROR(prepare(args, Purpose::kPlan, call));
    *bytes = call.needed_bytes();
    return {};
  });
}

flashrel_code flashrel_attention(const flashrel_attention_args* args, void* workspace, size_t workspace_bytes, void* stream) {
  return guarded([&]() -> Status {
    PlannedCall call;
    FLASHREL_RETURN_IF_ERROR(prepare(args, Purpose::kRun, call));
    FLASHREL_RETURN_IF_ERROR(check_memory("workspace", workspace, workspace_bytes, call.needed_bytes()));
    if (is_empty(call.problem)) return {};
    const CallMemory memory = place_memory(call.plan, workspace, call.shared_schedule);
    return on_device(call, [&] { return run_plan(call.problem, call.tensors, call.plan, memory, stream); });
  });
}

flashrel_code flashrel_schedule_bytes(const flashrel_attention_args* args, size_t* bytes) {
  return guarded([&]() -> Status {
    if (bytes == nullptr) return invalid("bytes: got a null pointer");
    PlannedCall call;
    FLASHREL_RETURN_IF_ERROR(prepare(args, Purpose::kSchedule, call));
    *bytes = call.plan.schedule_memory.total_bytes();
    return {};
  });
}

flashrel_code flashrel_schedule(const flashrel_attention_args* args, flashrel_schedule_buffer* buffer, void* stream) {
  return guarded([&]() -> Status {
    if (buffer == nullptr) return invalid("buffer: got a null pointer");
    PlannedCall call;
    FLASHREL_RETURN_IF_ERROR(prepare(args, Purpose::kSchedule, call));
    FLASHREL_RETURN_IF_ERROR(check_memory("buffer", buffer->data, buffer->bytes, call.plan.schedule_memory.total_bytes()));
    buffer->key = schedule_key(call.problem, call.plan);
    if (is_empty(call.problem)) return {};
    return on_device(call, [&] { return run_schedule(call.problem, call.tensors, call.plan, buffer->data, stream); });
  });
}

flashrel_code flashrel_plan_json(const flashrel_attention_args* args, char* text, size_t capacity, size_t* needed) {
  return guarded([&]() -> Status {
    PlannedCall call;
    FLASHREL_RETURN_IF_ERROR(prepare(args, Purpose::kPlan, call));
    return copy_text(describe_plan(call.problem, call.device, call.plan), text, capacity, needed);
  });
}

flashrel_code flashrel_merge(const flashrel_merge_args* given, void* stream) {
  return guarded([&]() -> Status {
    flashrel_merge_args args;
    MergeProblem problem;
    MergeTensors tensors;
    FLASHREL_RETURN_IF_ERROR(read_args(given, args));
    FLASHREL_RETURN_IF_ERROR(validate_merge(args, problem, tensors));
    if (problem.n_rows == 0 || problem.n_heads == 0) return {};
    if (problem.memory == MemoryKind::kHost) return merge_cpu(problem, tensors);
    Device device;
    FLASHREL_RETURN_IF_ERROR(cuda_device(args.device, device));
#if defined(FLASHREL_WITH_CUDA)
    const CurrentCudaDevice current(device.ordinal);
    return merge_cuda(problem, tensors, stream);
#else
    static_cast<void>(stream);
    return runtime_error("memory: got CUDA in a build without GPU backends");
#endif
  });
}

flashrel_code flashrel_set_parallel_for(flashrel_parallel_for parallel_for, void* pool, int32_t n_threads) {
  return guarded([&] { return set_parallel_for(parallel_for, pool, n_threads); });
}

flashrel_code flashrel_set_num_threads(int32_t n_threads) {
  return guarded([&] { return set_num_threads(n_threads); });
}

flashrel_code flashrel_info_json(char* text, size_t capacity, size_t* needed) {
  return guarded([&] { return copy_text(describe_build(), text, capacity, needed); });
}

int64_t flashrel_bucket_max_seqlen_q(int64_t n) { return bucket_max_seqlen_q(n); }

int32_t flashrel_use_sheared_bias(int32_t capability_major, int32_t) { return use_sheared_bias(capability_major) ? 1 : 0; }

int64_t flashrel_inkling_fa4_num_splits(int32_t is_local, int64_t batch_size, int64_t max_query_len, int64_t num_heads,
                                        int64_t num_kv_heads, int64_t max_kv_len, int32_t capability_major) {
  return inkling_fa4_num_splits(
      {is_local != 0, batch_size, max_query_len, num_heads, num_kv_heads, max_kv_len, capability_major});
}

}  // extern "C"
