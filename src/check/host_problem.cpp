#include "check/host_problem.hpp"

#include <algorithm>
#include <cstring>

namespace flashrel::check {

void HostProblem::add_outputs(std::int64_t out_token_elems, bool has_lse, bool lse_is_head_major) {
  const std::int64_t n_tokens = args.q.shape[0], n_heads = args.q.shape[1], head_dim = args.q.shape[2];
  const auto dtype = static_cast<DType>(args.q.dtype);
  const auto add = [&](std::size_t bytes) {
    const Buffer& buffer = outputs.emplace_back(bytes + 2 * kGuardBytes);
    std::memset(buffer.data(), kUntouched, buffer.bytes());
    return buffer.data() + kGuardBytes;
  };
  args.out = make_tensor(add(static_cast<std::size_t>(n_tokens * out_token_elems) * size_of(dtype)), dtype,
                         {n_tokens, n_heads, head_dim});
  args.out.stride[0] = out_token_elems;
  if (!has_lse) return;
  args.lse =
      make_tensor(add(static_cast<std::size_t>(n_tokens * n_heads) * sizeof(float)), DType::kFloat32, {n_tokens, n_heads});
  if (lse_is_head_major) args.lse.stride[0] = 1, args.lse.stride[1] = std::max<std::int64_t>(1, n_tokens);
}

flashrel_tensor make_tensor(void* data, DType dtype, std::initializer_list<std::int64_t> shape) {
  flashrel_tensor tensor{};
  tensor.data = data;
  tensor.dtype = static_cast<std::int32_t>(dtype);
  tensor.rank = static_cast<std::int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), tensor.shape);
  std::int64_t stride = 1;
  for (int i = tensor.rank - 1; i >= 0; --i) {
    tensor.stride[i] = stride;
    stride *= tensor.shape[i];
  }
  return tensor;
}

std::int64_t count_of(const flashrel_tensor& tensor) {
  std::int64_t count = tensor.rank > 0 ? 1 : 0;
  for (int i = 0; i < tensor.rank; ++i) count *= tensor.shape[i];
  return count;
}

const std::vector<NamedTensor>& input_tensors() {
  using Args = flashrel_attention_args;
  static const std::vector<NamedTensor> all = {
      {"q", &Args::q},
      {"k_cache", &Args::k_cache},
      {"v_cache", &Args::v_cache},
      {"block_table", &Args::block_table},
      {"cache_seqlens", &Args::cache_seqlens},
      {"cu_seqlens_q", &Args::cu_seqlens_q},
      {"rel_logits", &Args::rel_logits},
      {"rel", &Args::rel},
      {"rel_proj", &Args::rel_proj},
      {"rel_scale", &Args::rel_scale},
  };
  return all;
}

const std::vector<NamedTensor>& output_tensors() {
  static const std::vector<NamedTensor> all = {{"out", &flashrel_attention_args::out}, {"lse", &flashrel_attention_args::lse}};
  return all;
}

Status describe(const HostProblem& host, Call& call) {
  FLASHREL_RETURN_IF_ERROR(validate(host.args, call));
  FLASHREL_RETURN_IF_ERROR(validate_lengths(call.problem, call.tensors));
  return validate_pages(call.problem, call.tensors);
}

}  // namespace flashrel::check
