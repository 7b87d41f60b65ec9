#include "api/validate.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "api/tensor_check.hpp"
#include "index/pages.hpp"

namespace flashrel {
namespace {

using Args = flashrel_attention_args;

std::string got(const char* name, std::int64_t found, const std::string& expected) {
  return std::string(name) + ": got " + std::to_string(found) + ", expected " + expected;
}

Status check_range(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return {};
  return invalid(got(name, value, std::to_string(low) + " to " + std::to_string(high)));
}

Status check_flag(const char* name, std::int32_t value) {
  return value == 0 || value == 1 ? Status{} : invalid(got(name, value, "0 or 1"));
}

constexpr std::int64_t kAnyStride = 0;  // a tensor that is absent or has one entry in that dimension

std::int64_t stride_of(const flashrel_tensor& t, int dim) {
  return dim < t.rank && t.shape[dim] > 1 ? t.stride[dim] : kAnyStride;
}

Status read_scalars(const Args& a, Call& call) {
  Problem& p = call.problem;
  FLASHREL_RETURN_IF_ERROR(check_range("memory", a.memory, FLASHREL_HOST, FLASHREL_CUDA));
  FLASHREL_RETURN_IF_ERROR(check_flag("causal", a.causal));
  FLASHREL_RETURN_IF_ERROR(check_flag("deterministic", a.deterministic));
  FLASHREL_RETURN_IF_ERROR(check_flag("validate", a.validate));
  FLASHREL_RETURN_IF_ERROR(check_range("rel_edge", a.rel_edge, FLASHREL_EDGE_ZERO, FLASHREL_EDGE_CLAMP));
  FLASHREL_RETURN_IF_ERROR(check_range("window_left", a.window_left, -1, std::numeric_limits<std::int64_t>::max()));
  FLASHREL_RETURN_IF_ERROR(check_range("window_right", a.window_right, -1, std::numeric_limits<std::int64_t>::max()));
  FLASHREL_RETURN_IF_ERROR(check_range("rel_zero", a.rel_zero, -kFar + 1, kFar - 1));
  FLASHREL_RETURN_IF_ERROR(check_range("num_splits", a.num_splits, 0, std::numeric_limits<std::int32_t>::max()));
  if (!std::isfinite(a.softmax_scale))
    return invalid("softmax_scale: got " + std::to_string(a.softmax_scale) + ", expected a finite number");
  p.memory = static_cast<MemoryKind>(a.memory);
  p.softmax_scale = a.softmax_scale;
  p.visible = visible_distances(a.causal == 1, a.window_left, a.window_right);
  p.rel_zero = a.rel_zero;
  call.options.num_splits = a.num_splits;
  call.options.deterministic = a.deterministic == 1;
  call.options.backend = a.backend && *a.backend ? a.backend : "auto";
  call.options.route = a.route && *a.route ? a.route : "auto";
  return {};
}

// q, the caches and out: shapes agree, groups are whole.
Status read_attention_tensors(const Args& a, Problem& p) {
  const bool host = p.memory == MemoryKind::kHost;
  if (host)
    FLASHREL_RETURN_IF_ERROR(check_tensor("q", a.q, {DType::kBFloat16, DType::kFloat16, DType::kFloat32},
                                          {{"n_tokens"}, {"n_q_heads"}, {"head_dim"}}));
  else
    FLASHREL_RETURN_IF_ERROR(
        check_tensor("q", a.q, {DType::kBFloat16, DType::kFloat16}, {{"n_tokens"}, {"n_q_heads"}, {"head_dim"}}));
  p.dtype = dtype_of(a.q);
  p.n_tokens = a.q.shape[0];
  FLASHREL_RETURN_IF_ERROR(check_range("n_tokens of q", p.n_tokens, 0, kMaxLength - 1));
  FLASHREL_RETURN_IF_ERROR(check_range("n_q_heads of q", a.q.shape[1], 1, 1 << 20));
  FLASHREL_RETURN_IF_ERROR(check_range("head_dim of q", a.q.shape[2], 1, 512));
  p.n_q_heads = static_cast<int>(a.q.shape[1]);
  p.head_dim = static_cast<int>(a.q.shape[2]);

  FLASHREL_RETURN_IF_ERROR(
      check_tensor("k_cache", a.k_cache, {p.dtype}, {{"n_pages"}, {"page_size"}, {"n_kv_heads"}, {"head_dim", p.head_dim}}));
  p.n_pages = a.k_cache.shape[0];
  FLASHREL_RETURN_IF_ERROR(check_range("page_size of k_cache", a.k_cache.shape[1], 1, kMaxLength - 1));
  FLASHREL_RETURN_IF_ERROR(check_range("n_kv_heads of k_cache", a.k_cache.shape[2], 1, p.n_q_heads));
  p.page_size = static_cast<int>(a.k_cache.shape[1]);
  p.n_kv_heads = static_cast<int>(a.k_cache.shape[2]);
  if (p.n_q_heads % p.n_kv_heads != 0)
    return invalid(got("n_q_heads of q", p.n_q_heads, "a multiple of n_kv_heads = " + std::to_string(p.n_kv_heads)));
  FLASHREL_RETURN_IF_ERROR(
      check_range("n_tokens * group", p.n_tokens * p.group(), 0, std::numeric_limits<std::int32_t>::max() - 1024));
  FLASHREL_RETURN_IF_ERROR(check_tensor(
      "v_cache", a.v_cache, {p.dtype},
      {{"n_pages", p.n_pages}, {"page_size", p.page_size}, {"n_kv_heads", p.n_kv_heads}, {"head_dim", p.head_dim}}));
  FLASHREL_RETURN_IF_ERROR(
      check_tensor("out", a.out, {p.dtype}, {{"n_tokens", p.n_tokens}, {"n_q_heads", p.n_q_heads}, {"head_dim", p.head_dim}}));
  for (const auto& [name, tensor] : {std::pair{"q", &a.q}, {"k_cache", &a.k_cache}, {"v_cache", &a.v_cache}, {"out", &a.out}})
    FLASHREL_RETURN_IF_ERROR(check_contiguous_rows(name, *tensor));
  return {};
}

// block_table, cache_seqlens, cu_seqlens_q, the bounds and lse.
Status read_batch_tensors(const Args& a, Problem& p) {
  FLASHREL_RETURN_IF_ERROR(check_tensor("block_table", a.block_table, {DType::kInt32}, {{"n_seqs"}, {"max_pages"}}));
  FLASHREL_RETURN_IF_ERROR(check_range("n_seqs of block_table", a.block_table.shape[0], 0, kMaxLength - 1));
  p.n_seqs = static_cast<int>(a.block_table.shape[0]);
  p.max_pages = a.block_table.shape[1];
  FLASHREL_RETURN_IF_ERROR(check_tensor("cache_seqlens", a.cache_seqlens, {DType::kInt32}, {{"n_seqs", p.n_seqs}}));
  FLASHREL_RETURN_IF_ERROR(check_tensor("cu_seqlens_q", a.cu_seqlens_q, {DType::kInt32}, {{"n_seqs + 1", p.n_seqs + 1}}));
  if (present(a.lse))
    FLASHREL_RETURN_IF_ERROR(
        check_tensor("lse", a.lse, {DType::kFloat32}, {{"n_tokens", p.n_tokens}, {"n_q_heads", p.n_q_heads}}));
  p.has_lse = present(a.lse);

  const std::int64_t table_keys = std::min<std::int64_t>(p.max_pages * p.page_size, kMaxLength - 1);
  FLASHREL_RETURN_IF_ERROR(check_range("max_seqlen_q", a.max_seqlen_q, -1, kMaxLength - 1));
  FLASHREL_RETURN_IF_ERROR(check_range("max_seqlen_k", a.max_seqlen_k, -1, kMaxLength - 1));
  p.max_seqlen_q = a.max_seqlen_q < 0 ? p.n_tokens : std::min(a.max_seqlen_q, p.n_tokens);
  p.max_seqlen_k = a.max_seqlen_k < 0 ? table_keys : std::min(a.max_seqlen_k, table_keys);
  return {};
}

Status read_bias_tensors(const Args& a, Problem& p) {
  const bool logits = present(a.rel_logits), fused = present(a.rel) || present(a.rel_proj);
  if (logits && fused) return invalid("rel_logits: given together with rel or rel_proj, expected one of the two");
  if (present(a.rel_scale) && !fused) return invalid("rel_scale: given without rel and rel_proj, expected all three");
  if (logits) {
    FLASHREL_RETURN_IF_ERROR(check_tensor("rel_logits", a.rel_logits, {DType::kBFloat16, DType::kFloat16, DType::kFloat32},
                                          {{"n_tokens", p.n_tokens}, {"n_q_heads", p.n_q_heads}, {"rel_extent"}}));
    FLASHREL_RETURN_IF_ERROR(check_contiguous_rows("rel_logits", a.rel_logits));
    p.bias = BiasMode::kLogits;
    p.rel_logits_dtype = dtype_of(a.rel_logits);
    p.rel_extent = a.rel_logits.shape[2];
  } else if (fused) {
    FLASHREL_RETURN_IF_ERROR(
        check_tensor("rel", a.rel, {p.dtype}, {{"n_tokens", p.n_tokens}, {"n_q_heads", p.n_q_heads}, {"d_rel"}}));
    FLASHREL_RETURN_IF_ERROR(check_range("d_rel of rel", a.rel.shape[2], 1, 512));
    p.d_rel = static_cast<int>(a.rel.shape[2]);
    FLASHREL_RETURN_IF_ERROR(check_tensor("rel_proj", a.rel_proj, {p.dtype}, {{"d_rel", p.d_rel}, {"rel_extent"}}));
    FLASHREL_RETURN_IF_ERROR(check_contiguous_rows("rel", a.rel));
    FLASHREL_RETURN_IF_ERROR(check_contiguous_rows("rel_proj", a.rel_proj));
    if (present(a.rel_scale))
      FLASHREL_RETURN_IF_ERROR(check_tensor("rel_scale", a.rel_scale, {DType::kFloat32}, {{"n_tokens", p.n_tokens}}));
    p.bias = BiasMode::kFused;
    p.has_rel_scale = present(a.rel_scale);
    p.rel_extent = a.rel_proj.shape[1];
  }
  if (p.bias == BiasMode::kNone) return {};
  FLASHREL_RETURN_IF_ERROR(check_range("rel_extent", p.rel_extent, 1, kMaxLength - 1));
  p.band = band_distances(p.rel_zero, p.rel_extent, static_cast<RelEdge>(a.rel_edge));
  return {};
}

Status check_no_overlap(const Args& a) {
  const struct {
    const char* name;
    const flashrel_tensor* tensor;
  } written[] = {{"out", &a.out}, {"lse", &a.lse}}, read[] = {{"q", &a.q},
                                                              {"k_cache", &a.k_cache},
                                                              {"v_cache", &a.v_cache},
                                                              {"block_table", &a.block_table},
                                                              {"cache_seqlens", &a.cache_seqlens},
                                                              {"cu_seqlens_q", &a.cu_seqlens_q},
                                                              {"rel_logits", &a.rel_logits},
                                                              {"rel", &a.rel},
                                                              {"rel_proj", &a.rel_proj},
                                                              {"rel_scale", &a.rel_scale}};
  for (const auto& w : written) {
    const Extent x = extent_of(*w.tensor);
    if (x.begin == nullptr) continue;
    // Views of one buffer may interleave legally (out inside a padded row of q), so only a shared start is an error.
    for (const auto& r : read)
      if (extent_of(*r.tensor).begin == x.begin)
        return invalid(std::string(w.name) + ": starts at the same address as " + r.name + ", expected memory of its own");
  }
  return {};
}

Strides read_strides(const Args& a) {
  Strides s;
  s.q_token = stride_of(a.q, 0), s.q_head = stride_of(a.q, 1);
  s.k_page = stride_of(a.k_cache, 0), s.k_slot = stride_of(a.k_cache, 1), s.k_head = stride_of(a.k_cache, 2);
  s.v_page = stride_of(a.v_cache, 0), s.v_slot = stride_of(a.v_cache, 1), s.v_head = stride_of(a.v_cache, 2);
  s.table_seq = stride_of(a.block_table, 0), s.table_page = stride_of(a.block_table, 1);
  s.kv_len_seq = stride_of(a.cache_seqlens, 0), s.cu_q_seq = stride_of(a.cu_seqlens_q, 0);
  s.rel_logits_token = stride_of(a.rel_logits, 0), s.rel_logits_head = stride_of(a.rel_logits, 1);
  s.rel_token = stride_of(a.rel, 0), s.rel_head = stride_of(a.rel, 1);
  s.rel_proj_row = stride_of(a.rel_proj, 0);
  s.rel_scale_token = stride_of(a.rel_scale, 0);
  s.out_token = stride_of(a.out, 0), s.out_head = stride_of(a.out, 1);
  s.lse_token = stride_of(a.lse, 0), s.lse_head = stride_of(a.lse, 1);
  return s;
}

int common_alignment(std::initializer_list<const void*> addresses) {
  std::uintptr_t bits = 16;
  for (const void* address : addresses) bits |= reinterpret_cast<std::uintptr_t>(address);
  return static_cast<int>(bits & (~bits + 1));  // lowest bit that is set
}

Tensors read_pointers(const Args& a) {
  Tensors t;
  t.q = a.q.data, t.k_cache = a.k_cache.data, t.v_cache = a.v_cache.data;
  t.block_table = static_cast<const std::int32_t*>(a.block_table.data);
  t.cache_seqlens = static_cast<const std::int32_t*>(a.cache_seqlens.data);
  t.cu_seqlens_q = static_cast<const std::int32_t*>(a.cu_seqlens_q.data);
  t.rel_logits = a.rel_logits.data, t.rel = a.rel.data, t.rel_proj = a.rel_proj.data;
  t.rel_scale = static_cast<const float*>(a.rel_scale.data);
  t.out = a.out.data, t.lse = static_cast<float*>(a.lse.data);
  return t;
}

}  // namespace

Status validate(const Args& args, Call& call) {
  call = Call{};
  FLASHREL_RETURN_IF_ERROR(read_scalars(args, call));
  FLASHREL_RETURN_IF_ERROR(read_attention_tensors(args, call.problem));
  FLASHREL_RETURN_IF_ERROR(read_batch_tensors(args, call.problem));
  FLASHREL_RETURN_IF_ERROR(read_bias_tensors(args, call.problem));
  FLASHREL_RETURN_IF_ERROR(check_no_overlap(args));
  call.problem.strides = read_strides(args);
  call.problem.input_alignment =
      common_alignment({args.q.data, args.k_cache.data, args.v_cache.data, args.rel.data, args.rel_logits.data});
  call.tensors = read_pointers(args);
  return {};
}

Status validate_lengths(const Problem& p, const Tensors& t) {
  const Strides& s = p.strides;
  if (t.cu_seqlens_q[0] != 0) return invalid(got("cu_seqlens_q[0]", t.cu_seqlens_q[0], "0"));
  for (int seq = 0; seq < p.n_seqs; ++seq) {
    const std::string at = "[" + std::to_string(seq) + "]", next = "[" + std::to_string(seq + 1) + "]";
    const std::int64_t begin = t.cu_seqlens_q[seq * s.cu_q_seq], end = t.cu_seqlens_q[(seq + 1) * s.cu_q_seq];
    if (end < begin)
      return invalid(got(("cu_seqlens_q" + next).c_str(), end, "at least cu_seqlens_q" + at + " = " + std::to_string(begin)));
    if (end > p.n_tokens)
      return invalid(got(("cu_seqlens_q" + next).c_str(), end, "at most n_tokens = " + std::to_string(p.n_tokens)));
    if (end - begin > p.max_seqlen_q)
      return invalid(got(("q_len" + at).c_str(), end - begin, "at most max_seqlen_q = " + std::to_string(p.max_seqlen_q)));

    const std::int64_t kv_len = t.cache_seqlens[seq * s.kv_len_seq];
    if (kv_len < 0) return invalid(got(("cache_seqlens" + at).c_str(), kv_len, "0 or more"));
    if (kv_len > p.max_pages * p.page_size)
      return invalid(got(("cache_seqlens" + at).c_str(), kv_len,
                         "at most max_pages * page_size = " + std::to_string(p.max_pages * p.page_size)));
    if (kv_len > p.max_seqlen_k)
      return invalid(got(("cache_seqlens" + at).c_str(), kv_len, "at most max_seqlen_k = " + std::to_string(p.max_seqlen_k)));
  }
  return {};
}

Status validate_pages(const Problem& p, const Tensors& t) {
  const Strides& s = p.strides;
  for (int seq = 0; seq < p.n_seqs; ++seq) {
    const std::int32_t begin = t.cu_seqlens_q[seq * s.cu_q_seq], end = t.cu_seqlens_q[(seq + 1) * s.cu_q_seq];
    const Lengths lengths{end - begin, t.cache_seqlens[seq * s.kv_len_seq]};
    const Range used = page_entries(visible_keys({0, lengths.q_len}, lengths, p.visible), p.page_size);
    for (int entry = used.begin; entry < used.end; ++entry) {
      const std::int32_t page = t.block_table[seq * s.table_seq + entry * s.table_page];
      if (!page_in_cache(page, p.n_pages))
        return invalid(got(("block_table[" + std::to_string(seq) + "][" + std::to_string(entry) + "]").c_str(), page,
                           "a page number from 0 to " + std::to_string(p.n_pages - 1)));
    }
  }
  return {};
}

Status validate_merge(const flashrel_merge_args& a, MergeProblem& m, MergeTensors& t) {
  FLASHREL_RETURN_IF_ERROR(check_range("memory", a.memory, FLASHREL_HOST, FLASHREL_CUDA));
  const auto floats = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
  FLASHREL_RETURN_IF_ERROR(
      check_tensor("parts_out", a.parts_out, floats, {{"n_parts"}, {"n_rows"}, {"n_heads"}, {"head_dim"}}));
  const std::int64_t* shape = a.parts_out.shape;
  FLASHREL_RETURN_IF_ERROR(check_range("n_parts of parts_out", shape[0], 1, kMaxLength - 1));
  FLASHREL_RETURN_IF_ERROR(check_range("head_dim of parts_out", shape[3], 1, kMaxLength - 1));
  FLASHREL_RETURN_IF_ERROR(check_tensor("parts_lse", a.parts_lse, {DType::kFloat32},
                                        {{"n_parts", shape[0]}, {"n_rows", shape[1]}, {"n_heads", shape[2]}}));
  FLASHREL_RETURN_IF_ERROR(
      check_tensor("out", a.out, floats, {{"n_rows", shape[1]}, {"n_heads", shape[2]}, {"head_dim", shape[3]}}));
  FLASHREL_RETURN_IF_ERROR(check_contiguous_rows("parts_out", a.parts_out));
  FLASHREL_RETURN_IF_ERROR(check_contiguous_rows("out", a.out));
  if (present(a.lse))
    FLASHREL_RETURN_IF_ERROR(check_tensor("lse", a.lse, {DType::kFloat32}, {{"n_rows", shape[1]}, {"n_heads", shape[2]}}));

  m.memory = static_cast<MemoryKind>(a.memory);
  m.parts_dtype = dtype_of(a.parts_out), m.out_dtype = dtype_of(a.out);
  m.n_parts = shape[0], m.n_rows = shape[1], m.n_heads = shape[2], m.head_dim = static_cast<int>(shape[3]);
  m.part_stride = stride_of(a.parts_out, 0), m.part_row = stride_of(a.parts_out, 1), m.part_head = stride_of(a.parts_out, 2);
  m.part_lse_stride = stride_of(a.parts_lse, 0), m.part_lse_row = stride_of(a.parts_lse, 1);
  m.part_lse_head = stride_of(a.parts_lse, 2);
  m.out_row = stride_of(a.out, 0), m.out_head = stride_of(a.out, 1);
  m.lse_row = stride_of(a.lse, 0), m.lse_head = stride_of(a.lse, 1);
  t = {a.parts_out.data, static_cast<const float*>(a.parts_lse.data), a.out.data, static_cast<float*>(a.lse.data)};
  return {};
}

}  // namespace flashrel
