#include "backend/sm90/cache_maps.hpp"
#include "backend/sm90/tiles.hpp"

namespace flashrel::sm90 {
namespace {

struct PagedStrides {
  std::int64_t page, slot, head;
};

}  // namespace

Status make_cache_maps(const Problem& p, const Tensors& t, int keys_per_box, gpu::L2Fetch fetch, CUtensorMap& k,
                       CUtensorMap& v) {
  const Strides& s = p.strides;
  const int n_lines = lines_per_row(p.head_dim);
  const auto make_map = [&](const char* name, const void* data, PagedStrides strides, CUtensorMap& map) {
    const std::int64_t heads_span = p.n_kv_heads > 1 ? (p.n_kv_heads - 1) * strides.head : 0;
    return gpu::make_tensor_map(name, data, p.dtype,
                                {{heads_span + kLineElems, 0, kLineElems},
                                 {kKeysPerGroup, strides.slot, kKeysPerGroup},
                                 {n_lines, kLineElems, n_lines},
                                 {p.page_size / kKeysPerGroup, strides.slot * kKeysPerGroup, keys_per_box / kKeysPerGroup},
                                 {max_of<std::int64_t>(1, p.n_pages), strides.page, 1}},
                                gpu::Swizzle::k128Bytes, map, fetch);
  };
  // Without pages nothing is read, but a map needs an address: every page number counts as wild.
  const bool no_pages = p.n_pages == 0;
  FLASHREL_RETURN_IF_ERROR(make_map("k_cache", no_pages ? t.q : t.k_cache, {s.k_page, s.k_slot, s.k_head}, k));
  return make_map("v_cache", no_pages ? t.q : t.v_cache, {s.v_page, s.v_slot, s.v_head}, v);
}

}  // namespace flashrel::sm90
