#include <cmath>
#include <initializer_list>
#include <string>

#include "backend/sm90/decode/tiles.hpp"
#include "backend/sm90/policy.hpp"
#include "backend/sm90/prefill/logits.hpp"
#include "backend/sm90/prefill/shear.hpp"
#include "backend/sm90/prefill/tiles.hpp"

namespace flashrel::sm90 {
namespace {

// One refusal: the argument, what was found, what is needed.
std::string refusal(const char* argument, const std::string& found, const std::string& needed) {
  return std::string(argument) + ": got " + found + ", sm90 needs " + needed;
}
std::string refusal(const char* argument, std::int64_t found, const std::string& needed) {
  return refusal(argument, std::to_string(found), needed);
}

struct Stride {
  const char* name;
  std::int64_t size, elems;  // of the dimension that it steps through
  int elem_bytes = 2;
};

// TMA addresses rows in units of 16 bytes and takes strides below 2^40 bytes. A dimension of size 1 may carry any stride.
std::string check_strides(const Problem& p) {
  const Strides& s = p.strides;
  const bool fused = p.bias == BiasMode::kFused, logits = p.bias == BiasMode::kLogits;
  const int logit_bytes = static_cast<int>(size_of(p.rel_logits_dtype));
  const bool broadcast = s.rel_logits_token == 0;
  if (p.input_alignment < 16)
    return refusal("q, k_cache, v_cache, rel, rel_logits",
                   "an address aligned to " + std::to_string(p.input_alignment) + " bytes", "16");
  const std::initializer_list<Stride> strides = {
      {"q stride of a token", p.n_tokens, s.q_token},
      {"q stride of a head", p.n_q_heads, s.q_head},
      {"k_cache stride of a page", p.n_pages, s.k_page},
      {"k_cache stride of a slot", p.page_size, s.k_slot},
      {"k_cache stride of a head", p.n_kv_heads, s.k_head},
      {"v_cache stride of a page", p.n_pages, s.v_page},
      {"v_cache stride of a slot", p.page_size, s.v_slot},
      {"v_cache stride of a head", p.n_kv_heads, s.v_head},
      {"rel stride of a token", fused ? p.n_tokens : 1, s.rel_token},
      {"rel stride of a head", fused ? p.n_q_heads : 1, s.rel_head},
      {"rel_logits stride of a token", logits && !broadcast ? p.n_tokens : 1, s.rel_logits_token, logit_bytes},
      {"rel_logits stride of a head", logits ? p.n_q_heads : 1, s.rel_logits_head, logit_bytes},
  };
  constexpr std::int64_t kLimitBytes = std::int64_t{1} << 40;
  for (const Stride& stride : strides) {
    const int unit = 16 / stride.elem_bytes;
    if (stride.size > 1 && (stride.elems <= 0 || stride.elems % unit != 0 || stride.elems >= kLimitBytes / stride.elem_bytes))
      return refusal(stride.name, stride.elems,
                     "a positive multiple of " + std::to_string(unit) + " elements below 2^40 bytes");
  }
  // The head travels inside a 32-bit coordinate (kernel_params.hpp).
  const std::int64_t kMaxSpan = (std::int64_t{1} << 31) - p.head_dim;
  for (const auto& [name, stride] : {std::pair{"k_cache stride of a head", s.k_head}, {"v_cache stride of a head", s.v_head}})
    if (p.n_kv_heads > 1 && (p.n_kv_heads - 1) * stride >= kMaxSpan)
      return refusal(name, stride, "all heads of a slot within 2^31 elements");
  return "";
}

std::string check_band(const Problem& p) {
  if (std::abs(p.rel_zero) >= prefill::kMaxRelZero) return refusal("rel_zero", p.rel_zero, "a magnitude below 2^29");
  return "";
}

std::string check_logits(const Problem& p, const Options& options) {
  if (options.route == "score_mod") return refusal("route", "score_mod", "sheared");
  if (is_clamped(p.band)) return refusal("rel_edge", "clamp", "zero with rel_logits");
  if (p.head_dim == 64 && p.rel_logits_dtype != p.dtype && p.rel_logits_dtype != DType::kFloat32)
    return refusal("rel_logits dtype", name_of(p.rel_logits_dtype), "q's dtype or float32 with head_dim 64");
  return check_band(p);
}

std::string check_fused(const Problem& p, bool decode) {
  if (!decode && p.group() != 4 && p.group() != 8 && p.group() != 16)
    return refusal("n_q_heads / n_kv_heads", p.group(), "4, 8 or 16 with a fused bias");
  if (p.head_dim == 64 && p.d_rel > kRelDim) return refusal("d_rel", p.d_rel, "at most 16 with head_dim 64");
  if (p.d_rel > 2 * kRelDim) return refusal("d_rel", p.d_rel, "at most 32");
  const int steps = prefill::rel_steps(p.d_rel), max_extent = prefill::max_extent(p.head_dim, steps);
  if (!decode && p.rel_extent > max_extent)
    return refusal("rel_extent", p.rel_extent,
                   "at most " + std::to_string(max_extent) + (steps == 1 ? "" : " with d_rel above 16"));
  return check_band(p);
}

}  // namespace

std::string supports(const Problem& p, const Device& device, const Options& options) {
  if (device.capability() != 90)
    return refusal(
        "device",
        "compute capability " + std::to_string(device.capability_major) + "." + std::to_string(device.capability_minor),
        "exactly 9.0");
  if (p.dtype != DType::kBFloat16 && p.dtype != DType::kFloat16)
    return refusal("dtype", name_of(p.dtype), "bfloat16 or float16");
  if (p.head_dim != 64 && p.head_dim != 128) return refusal("head_dim", p.head_dim, "64 or 128");
  const bool decode = takes_decode(p, options);
  if (p.bias == BiasMode::kLogits)
    if (std::string reason = check_logits(p, options); !reason.empty()) return reason;
  if (p.bias == BiasMode::kFused)
    // The kernel of a deterministic sequence is found by its own rows, so prefill must serve the call whatever the bounds are.
    if (std::string reason = check_fused(p, decode && !options.deterministic); !reason.empty()) return reason;
  if (prefill::kWarpRows % p.group() != 0) return refusal("n_q_heads / n_kv_heads", p.group(), "1, 2, 4, 8 or 16");
  // Decode has head_dim 128 alone, d_rel above 16 and rel_logits for few rows, those in q's dtype, and no edge clamp. The
  // prefill kernel serves such short queries, but slower than mma; so only `auto` turns them away, and not from a deterministic
  // call, whose result must not change its backend with a neighbour's length.
  const bool not_in_decode =
      !decode && (p.bias == BiasMode::kLogits || is_clamped(p.band) || p.head_dim != 128 || p.d_rel > kRelDim);
  if (not_in_decode && options.backend == "auto" && !options.deterministic &&
      decode::instance_rows(p.max_seqlen_q * p.group()) != 0)
    return refusal(
        "max_seqlen_q", p.max_seqlen_q,
        "longer queries with head_dim 64, rel_edge clamp, such rel_logits or so many rows of such d_rel (decode has none)");
  if (p.page_size % kKeysPerGroup != 0) return refusal("page_size", p.page_size, "a multiple of 8");
  if (p.n_pages >= kMaxLength) return refusal("k_cache pages", p.n_pages, "fewer than 2^30");
  if (p.n_tokens >= kMaxLength) return refusal("q tokens", p.n_tokens, "fewer than 2^30");
  // The kernel divides by it and takes the maximum before it multiplies.
  if (!(p.softmax_scale >= 0x1p-60 && p.softmax_scale <= 0x1p60))
    return refusal("softmax_scale", std::to_string(p.softmax_scale), "2^-60 to 2^60");
  return check_strides(p);
}

}  // namespace flashrel::sm90
