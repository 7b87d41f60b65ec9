// From cache rows to packed operands: conversion, page lookup, and the two panel layouts.
// Included by isa/<name>.cpp only, through kernel.hpp; everything has internal linkage.
#pragma once

#include <cstring>

#include "backend/cpu/isa.hpp"
#include "index/pages.hpp"

namespace flashrel::cpu {
namespace {

// n elements of a tensor row as float32.
inline void row_to_float(const void* source, DType dtype, int n, float* out) {
  int i = 0;
  if (dtype == DType::kFloat32) {
    std::memcpy(out, source, static_cast<std::size_t>(n) * sizeof(float));
    return;
  }
  const auto* bits = static_cast<const std::uint16_t*>(source);
  if (dtype == DType::kBFloat16) {
    for (; i + Simd::kLanes <= n; i += Simd::kLanes) Simd::store(out + i, Simd::load_bf16(bits + i));
    for (; i < n; ++i) out[i] = bf16_to_float(bits[i]);
  } else {
    for (; i + Simd::kLanes <= n; i += Simd::kLanes) Simd::store(out + i, Simd::load_fp16(bits + i));
    for (; i < n; ++i) out[i] = fp16_to_float(bits[i]);
  }
}

inline void row_to_element(const void* source, DType dtype, int n, float* out) { row_to_float(source, dtype, n, out); }
inline void row_to_element(const void* source, DType, int n, std::uint16_t* out) {  // bf16 units serve bf16 tensors only
  std::memcpy(out, source, static_cast<std::size_t>(n) * sizeof(std::uint16_t));
}

inline bool same_type(DType dtype, const float*) { return dtype == DType::kFloat32; }
inline bool same_type(DType dtype, const std::uint16_t*) { return dtype == DType::kBFloat16; }

// n float32 values to a tensor row.
inline void float_to_row(const float* values, int n, DType dtype, void* out) {
  if (dtype == DType::kFloat32) {
    std::memcpy(out, values, static_cast<std::size_t>(n) * sizeof(float));
    return;
  }
  auto* bits = static_cast<std::uint16_t*>(out);
  int i = 0;
  if (dtype == DType::kBFloat16) {
    for (; i + Simd::kLanes <= n; i += Simd::kLanes) Simd::store_bf16(bits + i, Simd::load(values + i));
    for (; i < n; ++i) bits[i] = float_to_bf16(values[i]);
  } else {
    for (; i < n; ++i) bits[i] = float_to_fp16(values[i]);
  }
}

// Addresses of the K and V rows of keys [keys.begin, keys.end) of one sequence and KV head; null for a wild page number.
inline void find_rows(const KernelArgs& args, const WorkItem& item, Range keys, const void** k_rows, const void** v_rows) {
  const Problem& p = args.problem;
  const Strides& s = p.strides;
  const auto size = static_cast<std::int64_t>(size_of(p.dtype));
  const std::int32_t* table = args.tensors.block_table + item.seq * s.table_seq;
  const auto* k_cache = static_cast<const std::byte*>(args.tensors.k_cache) + item.kv_head * s.k_head * size;
  const auto* v_cache = static_cast<const std::byte*>(args.tensors.v_cache) + item.kv_head * s.v_head * size;
  for (int key = keys.begin; key < keys.end;) {
    const int entry = page_entry(key, p.page_size);
    const std::int64_t page = table[entry * s.table_page];
    const bool known = page_in_cache(static_cast<int>(page), p.n_pages);
    const int end = static_cast<int>(min_of<std::int64_t>(keys.end, (entry + std::int64_t{1}) * p.page_size));
    for (; key < end; ++key) {
      const std::int64_t slot = page_slot(key, p.page_size);
      *k_rows++ = known ? k_cache + (page * s.k_page + slot * s.k_slot) * size : nullptr;
      *v_rows++ = known ? v_cache + (page * s.v_page + slot * s.v_slot) * size : nullptr;
    }
  }
}

// Rows as `Element`, zero-padded to a width: the tensor's own memory where it already is that.
template <class Element>
struct RowSource {
  DType dtype;
  int width, padded;     // elements
  Element* stage;        // [16][padded]
  const Element* zeros;  // [padded]

  const Element* row(const void* source, int stage_row) const {
    if (source == nullptr) return zeros;
    if (width == padded && same_type(dtype, stage)) return static_cast<const Element*>(source);
    Element* out = stage + static_cast<std::ptrdiff_t>(stage_row) * padded;
    row_to_element(source, dtype, width, out);
    std::memset(static_cast<void*>(out + width), 0, static_cast<std::size_t>(padded - width) * sizeof(Element));
    return out;
  }
};

// K to panels of 16 keys: [panel][d / depth][16][depth], that is a transposition of 32-bit words.
template <class Element>
inline void pack_keys(const RowSource<Element>& source, const void* const* rows, int n_keys, Element* packed) {
  const int words = source.padded * static_cast<int>(sizeof(Element)) / 4;
  for (int key = 0; key < n_keys; key += kPanel) {
    const void* panel_rows[kPanel];
    for (int i = 0; i < kPanel; ++i) panel_rows[i] = source.row(rows[key + i], i);
    Simd::transpose_words(panel_rows, words, packed);
    packed += source.padded * kPanel;
  }
}

// V to panels of 16 columns: [panel][key][16].
inline void pack_values(const RowSource<float>& source, const void* const* rows, int n_keys, float* packed) {
  for (int key = 0; key < n_keys; ++key) {
    const float* row = source.row(rows[key], 0);
    for (int d = 0; d < source.padded; d += kPanel)
      for (int i = 0; i < kPanel; i += Simd::kLanes)
        Simd::store(packed + (static_cast<std::ptrdiff_t>(d / kPanel) * n_keys + key) * kPanel + i,
                    Simd::load_unaligned(row + d + i));
  }
}

// V to panels of 16 columns of key pairs: [panel][key / 2][16][2].
template <class S = Simd>
inline void pack_values(const RowSource<std::uint16_t>& source, const void* const* rows, int n_keys, std::uint16_t* packed) {
  for (int key = 0; key < n_keys; key += 2) {
    const std::uint16_t* even = source.row(rows[key], 0);
    const std::uint16_t* odd = source.row(rows[key + 1], 1);
    for (int d = 0; d < source.padded; d += kPanel)
      S::interleave_16(even + d, odd + d, packed + (static_cast<std::ptrdiff_t>(d / kPanel) * n_keys + key) * kPanel);
  }
}

}  // namespace
}  // namespace flashrel::cpu
