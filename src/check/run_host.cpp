#include "check/run_host.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "backend/backend.hpp"

namespace flashrel::check {
namespace {

Status from_abi(flashrel_code code) {
  return code == FLASHREL_OK ? Status{} : Status{static_cast<Code>(code), flashrel_last_error()};
}

// Reads every defined element of `view` to `values` and then marks it untouched, so that what else was written stands out.
template <class Element>
void take_elements(const flashrel_tensor& view, std::int64_t n_rows, std::vector<float>& values) {
  const std::int64_t n_heads = view.shape[1], n_cols = view.rank == 3 ? view.shape[2] : 1;
  auto* data = static_cast<Element*>(view.data);
  const auto dtype = static_cast<DType>(view.dtype);
  values.assign(static_cast<std::size_t>(count_of(view)), std::numeric_limits<float>::quiet_NaN());
  for (std::int64_t token = 0; token < n_rows; ++token)
    for (std::int64_t head = 0; head < n_heads; ++head) {
      const std::int64_t from = token * view.stride[0] + head * view.stride[1];
      const std::int64_t to = (token * n_heads + head) * n_cols;
      for (std::int64_t d = 0; d < n_cols; ++d) values[static_cast<std::size_t>(to + d)] = load_float(data, dtype, from + d);
      std::memset(&data[from], kUntouched, static_cast<std::size_t>(n_cols) * sizeof(Element));
    }
}

void take_output(const flashrel_tensor& view, std::int64_t n_rows, std::vector<float>& values) {
  if (view.rank == 0) return;
  if (size_of(static_cast<DType>(view.dtype)) == 2)
    take_elements<std::uint16_t>(view, n_rows, values);
  else
    take_elements<std::uint32_t>(view, n_rows, values);
}

// A sentence when some byte between guards was written; offsets count from the end of the first guard.
std::string find_damage(const std::string& what, const std::byte* data, std::size_t bytes) {
  const auto* at = std::find_if(data, data + bytes, [](std::byte b) { return b != std::byte{kUntouched}; });
  if (at == data + bytes) return "";
  const std::ptrdiff_t offset = at - data - static_cast<std::ptrdiff_t>(kGuardBytes);
  return what + ": the byte at offset " + std::to_string(offset) + " was written, expected it untouched";
}

}  // namespace

bool memory_of_backend(const std::string& name, MemoryKind& kind) {
  for (const MemoryKind candidate : {MemoryKind::kHost, MemoryKind::kCuda})
    for (const Backend* backend : backends_for(candidate))
      if (backend->name == name) {
        kind = candidate;
        return true;
      }
  return false;
}

Status Placement::create(HostProblem& host, const RunOptions& options, Placement& placement) {
  placement = Placement{};
  placement.host_ = &host;
  placement.options_ = options;
  if (options.memory == MemoryKind::kCuda) {
    for (const Buffer& buffer : host.inputs)
      FLASHREL_RETURN_IF_ERROR(Block::allocate(MemoryKind::kCuda, buffer.bytes(), placement.inputs_.emplace_back()));
    for (const Buffer& buffer : host.outputs)
      FLASHREL_RETURN_IF_ERROR(Block::allocate(MemoryKind::kCuda, buffer.bytes(), placement.outputs_.emplace_back()));
    FLASHREL_RETURN_IF_ERROR(placement.copy_inputs());
  }
  placement.place_tensors();
  if (options.shared_schedule) {
    const flashrel_attention_args args = placement.args();
    flashrel_schedule_buffer& buffer = placement.schedule_buffer_;
    FLASHREL_RETURN_IF_ERROR(from_abi(flashrel_schedule_bytes(&args, &buffer.bytes)));
    FLASHREL_RETURN_IF_ERROR(Block::allocate(options.memory, buffer.bytes, placement.schedule_));
    buffer.data = placement.schedule_.data();
    FLASHREL_RETURN_IF_ERROR(fill_bytes(options.memory, buffer.data, kUntouched, buffer.bytes));
    FLASHREL_RETURN_IF_ERROR(placement.schedule());
  }
  const flashrel_attention_args args = placement.args();
  FLASHREL_RETURN_IF_ERROR(from_abi(flashrel_attention_workspace(&args, &placement.workspace_bytes_)));
  return Block::allocate(options.memory, placement.workspace_bytes_ + 2 * kGuardBytes, placement.workspace_);
}

// The host problem's arguments with every pointer moved to the mirror of the buffer that it leads into.
void Placement::place_tensors() {
  args_ = host_->args;
  args_.memory = static_cast<std::int32_t>(options_.memory);
  args_.validate = options_.validate && options_.memory == MemoryKind::kHost;
  if (options_.num_splits >= 0) args_.num_splits = static_cast<std::int32_t>(options_.num_splits);
  args_.deterministic = args_.deterministic || options_.deterministic;
  if (options_.memory == MemoryKind::kHost) return;
  const auto move_to_mirror = [](const std::vector<Buffer>& buffers, const std::vector<Block>& mirrors, flashrel_tensor& view) {
    auto* data = static_cast<std::byte*>(view.data);
    for (std::size_t i = 0; i < buffers.size(); ++i)
      if (const std::byte* begin = buffers[i].data();
          begin <= data && data < begin + std::max<std::size_t>(1, buffers[i].bytes())) {
        view.data = mirrors[i].data() + (data - begin);
        return;
      }
  };
  for (const NamedTensor& input : input_tensors()) move_to_mirror(host_->inputs, inputs_, args_.*input.field);
  for (const NamedTensor& output : output_tensors()) move_to_mirror(host_->outputs, outputs_, args_.*output.field);
}

Status Placement::copy_inputs() {
  for (std::size_t i = 0; i < inputs_.size(); ++i)
    FLASHREL_RETURN_IF_ERROR(copy_in(options_.memory, inputs_[i].data(), host_->inputs[i].data(), host_->inputs[i].bytes()));
  return {};
}

Status Placement::poison() {
  if (options_.memory == MemoryKind::kHost)
    for (const Buffer& buffer : host_->outputs) std::memset(buffer.data(), kUntouched, buffer.bytes());
  for (const Block& block : outputs_)
    FLASHREL_RETURN_IF_ERROR(fill_bytes(options_.memory, block.data(), kUntouched, block.bytes()));
  return fill_bytes(options_.memory, workspace_.data(), kUntouched, workspace_.bytes());
}

Status Placement::schedule(void* stream) {
  const flashrel_attention_args call = args();
  return from_abi(flashrel_schedule(&call, &schedule_buffer_, stream));
}

Status Placement::launch(void* stream) {
  const flashrel_attention_args call = args();
  return from_abi(flashrel_attention(&call, workspace(), workspace_bytes_, stream));
}

flashrel_attention_args Placement::args() const {
  flashrel_attention_args call = args_;
  call.backend = options_.backend.c_str();
  call.route = options_.route.c_str();
  if (options_.shared_schedule) call.schedule = &schedule_buffer_;
  return call;
}

RunResult Placement::collect() {
  RunResult result;
  result.workspace_bytes = workspace_bytes_;
  result.status = synchronize(options_.memory);
  std::vector<std::byte> guards(2 * kGuardBytes);
  const auto copy = [&](void* to, const void* from, std::size_t bytes) {
    if (result.status.ok()) result.status = copy_out(options_.memory, to, from, bytes);
  };
  for (std::size_t i = 0; i < outputs_.size(); ++i) copy(host_->outputs[i].data(), outputs_[i].data(), outputs_[i].bytes());
  copy(guards.data(), workspace_.data(), kGuardBytes);
  copy(guards.data() + kGuardBytes, workspace_.data() + kGuardBytes + workspace_bytes_, kGuardBytes);
  if (!result.status.ok()) return result;

  const flashrel_tensor& prefix = host_->args.cu_seqlens_q;
  const std::int64_t n_rows = static_cast<const std::int32_t*>(prefix.data)[(prefix.shape[0] - 1) * prefix.stride[0]];
  take_output(host_->args.out, n_rows, result.out);
  take_output(host_->args.lse, n_rows, result.lse);
  result.damage = find_damage("guards of the workspace", guards.data(), guards.size());
  for (std::size_t i = 0; i < host_->outputs.size(); ++i)
    if (result.damage.empty())
      result.damage = find_damage(output_tensors()[i].name, host_->outputs[i].data(), host_->outputs[i].bytes());
  return result;
}

RunResult run_host(HostProblem& host, const RunOptions& options) {
  Placement placement;
  RunResult result;
  result.status = Placement::create(host, options, placement);
  if (result.status.ok()) result.status = placement.poison();
  if (result.status.ok()) result.status = placement.launch();
  return result.status.ok() ? placement.collect() : result;
}

}  // namespace flashrel::check
