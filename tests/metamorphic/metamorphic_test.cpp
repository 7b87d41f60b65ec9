// Two problems that must have the same answer, and one problem cut, moved or batched in two ways.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "check/memory.hpp"
#include "core/device.hpp"
#include "index/schedule.hpp"
#include "plan/make_plan.hpp"
#include "support/runners.hpp"

namespace flashrel::test {
namespace {

using check::HostProblem;
using check::Reference;
using check::RunResult;

const char* const kModes[] = {"bias=none", "bias=logits", "bias=fused rel_scale=1"};

Reference reference_of(const HostProblem& host, std::int64_t max_rows = 0) {
  Reference reference;
  const Status status = check::make_reference(host, max_rows, reference);
  EXPECT_TRUE(status.ok()) << status.text;
  return reference;
}

// A new batch over the same memory: the same tokens in order, cut into sequences of `q_lens` rows, each of which reads
// the pages of an old sequence.
struct NewSequence {
  int source, q_len, kv_len;
};

void set_batch(HostProblem& host, const std::vector<NewSequence>& batch) {
  flashrel_attention_args& a = host.args;
  const std::int64_t width = a.block_table.shape[1], n = static_cast<std::int64_t>(batch.size());
  auto* table = reinterpret_cast<std::int32_t*>(host.add_input(static_cast<std::size_t>(n * width) * 4));
  auto* kv_lens = reinterpret_cast<std::int32_t*>(host.add_input(static_cast<std::size_t>(n) * 4));
  auto* prefix = reinterpret_cast<std::int32_t*>(host.add_input(static_cast<std::size_t>(n + 1) * 4));
  const auto* old_table = static_cast<const std::int32_t*>(a.block_table.data);
  prefix[0] = 0;
  a.max_seqlen_q = a.max_seqlen_k = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    std::copy_n(old_table + batch[i].source * width, width, table + static_cast<std::int64_t>(i) * width);
    kv_lens[i] = batch[i].kv_len;
    prefix[i + 1] = prefix[i] + batch[i].q_len;
    a.max_seqlen_q = std::max<std::int64_t>(a.max_seqlen_q, batch[i].q_len);
    a.max_seqlen_k = std::max<std::int64_t>(a.max_seqlen_k, batch[i].kv_len);
  }
  a.block_table = check::make_tensor(table, DType::kInt32, {n, width});
  a.cache_seqlens = check::make_tensor(kv_lens, DType::kInt32, {n});
  a.cu_seqlens_q = check::make_tensor(prefix, DType::kInt32, {n + 1});
}

// Sequence `seq` alone, over the same memory.
void keep_only(HostProblem& host, int seq) {
  flashrel_attention_args& a = host.args;
  const auto* prefix = static_cast<const std::int32_t*>(a.cu_seqlens_q.data);
  const int first = prefix[seq], q_len = prefix[seq + 1] - first,
            kv_len = static_cast<const std::int32_t*>(a.cache_seqlens.data)[seq];
  for (flashrel_tensor* t : {&a.q, &a.out, &a.lse, &a.rel_logits, &a.rel, &a.rel_scale}) {
    if (t->rank == 0) continue;
    t->data = static_cast<std::byte*>(t->data) +
              static_cast<std::size_t>(first * t->stride[0]) * size_of(static_cast<DType>(t->dtype));
    t->shape[0] = q_len;
  }
  set_batch(host, {{seq, q_len, kv_len}});
}

TEST(Metamorphic, SharedScheduleGivesTheSameBits) {
  for (const char* lengths : {"q=1,1,0 kv=1500,3,9", "q=9,2 kv=700,0", "q=60,1,0,3 kv=200,900,8,0", "q=300 kv=700"})
    for (const char* mode : kModes)
      for (const bool deterministic : {false, true}) {
        HostProblem host = make(std::string(lengths) + " hq=8 hkv=2 d=128 page=16 extent=512 dtype=bf16 " + mode);
        for (Runner runner : runners_for(host)) {
          runner.options.deterministic = deterministic;
          const RunResult own = run(runner, host);
          runner.options.shared_schedule = true;
          const RunResult shared = run(runner, host);
          ASSERT_EQ(shared.status.code, own.status.code) << shared.status.text;
          EXPECT_EQ(shared.damage, "");
          ASSERT_EQ(shared.out.size(), own.out.size());
          EXPECT_EQ(std::memcmp(shared.out.data(), own.out.data(), own.out.size() * sizeof(float)), 0)
              << runner.name << ": " << lengths << " " << mode;
        }
      }
}

TEST(Metamorphic, EveryNumSplitsIsRight) {
  for (const char* lengths : {"q=1 kv=1500", "q=9 kv=700", "q=60,1,0,3 kv=200,900,8,0"})
    for (const char* mode : kModes) {
      HostProblem host = make(std::string(lengths) + " hq=8 hkv=2 d=64 page=16 extent=512 dtype=bf16 " + mode);
      const Reference reference = reference_of(host);
      for (Runner runner : runners_for(host))
        for (const std::int64_t splits : {0, 1, 2, 3, 32, 128, 100000}) {
          runner.options.num_splits = splits;
          const RunResult result = run(runner, host);
          if (!refused(runner, result)) expect_verdict(runner, host, reference, result);
        }
    }
}

TEST(Metamorphic, TheSameCallTwiceGivesTheSameBits) {
  for (const char* lengths : {"q=1 kv=1500", "q=130 kv=300", "q=60,1,0,3 kv=200,900,8,0"})
    for (const char* splits : {"", " splits=3"})
      for (const char* mode : kModes) {
        HostProblem host = make(std::string(lengths) + splits + " hq=8 hkv=1 d=128 page=16 extent=128 dtype=bf16 " + mode);
        for_each_result(host, [&](const Runner& runner, const RunResult& first) {
          for (int repeat = 0; repeat < 3; ++repeat) {
            const RunResult again = run(runner, host);
            ASSERT_TRUE(same_bits(again.out, first.out) && same_bits(again.lse, first.lse))
                << runner.name << ", case: " << host.label;
          }
        });
      }
}

TEST(Metamorphic, DeterministicBitsDoNotDependOnNeighbours) {
  // head_dim 128: sm90, whose decode kernel takes the short ones.
  for (const char* heads : {"hq=8 hkv=2 d=64", "hq=16 hkv=2 d=128"})
    for (const char* splits : {"", " splits=3", " splits=64"})
      for (const char* mode : kModes) {
        const std::string line =
            std::string("q=1,9,130,1,40 kv=3000,700,200,33,40 deterministic=1 page=16 extent=128 dtype=bf16 ") + heads + " " +
            mode + splits;
        HostProblem together = make(line);
        for_each_result(together, [&](const Runner& runner, const RunResult& all) {
          std::size_t first = 0;
          for (int seq = 0; seq < 5; ++seq) {
            HostProblem alone = make(line);
            keep_only(alone, seq);
            const RunResult one = run(runner, alone);
            ASSERT_TRUE(one.status.ok()) << one.status.text;
            const std::vector<float> part(all.out.begin() + static_cast<std::ptrdiff_t>(first),
                                          all.out.begin() + static_cast<std::ptrdiff_t>(first + one.out.size()));
            ASSERT_TRUE(same_bits(part, one.out)) << runner.name << ", sequence " << seq << ", case: " << together.label;
            first += one.out.size();
          }
        });
      }
}

// One call of nine rows is nine calls of one row; a chunked prefill is the whole prefill.
TEST(Metamorphic, RowsDoNotKnowHowTheyWereCut) {
  for (const char* mode : kModes) {
    HostProblem whole = make(std::string("q=9 kv=1000 hq=4 hkv=1 d=128 page=16 extent=512 dtype=bf16 ") + mode);
    const Reference reference = reference_of(whole);
    std::vector<NewSequence> rows;
    for (int i = 0; i < 9; ++i) rows.push_back({0, 1, 992 + i});
    for (const auto& batch :
         {rows, std::vector<NewSequence>{{0, 4, 995}, {0, 5, 1000}}, std::vector<NewSequence>{{0, 8, 999}, {0, 1, 1000}}}) {
      HostProblem cut = make(whole.label);
      set_batch(cut, batch);
      for_each_result(cut,
                      [&](const Runner& runner, const RunResult& result) { expect_verdict(runner, cut, reference, result); });
    }
  }
}

TEST(Metamorphic, TheLastRowOfAPrefillIsADecode) {
  for (const char* window : {"", " window=63"})
    for (const char* mode : kModes) {
      HostProblem prefill = make(std::string("q=200 kv=200 hq=4 hkv=2 d=64 page=16 extent=64 dtype=bf16 ") + mode + window);
      HostProblem decode = make(prefill.label);
      keep_only(decode, 0);
      for (flashrel_tensor* t : {&decode.args.q, &decode.args.out, &decode.args.lse, &decode.args.rel_logits, &decode.args.rel,
                                 &decode.args.rel_scale}) {
        if (t->rank == 0) continue;
        t->data = static_cast<std::byte*>(t->data) +
                  static_cast<std::size_t>(199 * t->stride[0]) * size_of(static_cast<DType>(t->dtype));
        t->shape[0] = 1;
      }
      set_batch(decode, {{0, 1, 200}});
      const Reference reference = reference_of(decode);
      for_each_result(
          decode, [&](const Runner& runner, const RunResult& result) { expect_verdict(runner, decode, reference, result); });
      for_each_result(prefill, [&](const Runner& runner, const RunResult& result) {
        RunResult last;
        last.out.assign(row_of(result, prefill, 199, 0), row_of(result, prefill, 199, 0) + 4 * 64);
        last.lse.assign(result.lse.end() - 4, result.lse.end());
        expect_verdict(runner, decode, reference, last);
      });
    }
}

// Where pages lie changes nothing at all; their size, and gaps between rows, nothing beyond rounding.
TEST(Metamorphic, PagesAndStridesDoNotMatter) {
  for (const char* mode : kModes) {
    const std::string base = std::string("q=33,1 kv=150,500 hq=8 hkv=2 d=64 extent=100 dtype=bf16 ") + mode;
    HostProblem plain = make(base + " page=16 shuffled=0");
    const Reference reference = reference_of(plain);
    for (const char* variant : {" page=16", " page=16 spare_pages=9 table_pad=5"}) {
      HostProblem moved = make(base + variant);
      for_each_result(moved, [&](const Runner& runner, const RunResult& result) {
        const RunResult expected = run(runner, plain);
        ASSERT_TRUE(same_bits(result.out, expected.out) && same_bits(result.lse, expected.lse)) << runner.name << variant;
      });
    }
    for (const char* variant :
         {" page=1", " page=7", " page=64", " page=512", " page=16 layout=NHD", " page=16 layout=HND",
          " page=16 layout=HND kv_pad=48", " page=16 q_pad=64 out_pad=8 lse=head", " page=16 spare_tokens=3"}) {
      HostProblem moved = make(base + variant);
      for_each_result(moved,
                      [&](const Runner& runner, const RunResult& result) { expect_verdict(runner, moved, reference, result); });
    }
  }
}

// (token, head, d) stored head by head.
void store_head_major(HostProblem& host, flashrel_tensor& t) {
  const std::size_t size = size_of(static_cast<DType>(t.dtype)), row = static_cast<std::size_t>(t.shape[2]) * size;
  std::byte* data = host.add_input(static_cast<std::size_t>(t.shape[0] * t.shape[1]) * row);
  for (std::int64_t token = 0; token < t.shape[0]; ++token)
    for (std::int64_t head = 0; head < t.shape[1]; ++head)
      std::memcpy(
          data + static_cast<std::size_t>(head * t.shape[0] + token) * row,
          static_cast<const std::byte*>(t.data) + static_cast<std::size_t>(token * t.stride[0] + head * t.stride[1]) * size,
          row);
  t.data = data;
  t.stride[0] = t.shape[2];
  t.stride[1] = t.shape[0] * t.shape[2];
}

// Tokens and heads may lie in any order, and a dimension of size 1 may carry any stride.
TEST(Metamorphic, HeadMajorTensorsAndOddSingletonStrides) {
  for (const char* lengths : {"q=33,1 kv=150,300", "q=1 kv=300"})
    for (const char* mode : kModes) {
      HostProblem host = make(std::string(lengths) + " hq=4 hkv=1 d=64 page=16 extent=100 dtype=bf16 " + mode);
      flashrel_attention_args& a = host.args;
      for (flashrel_tensor* t : {&a.q, &a.rel_logits, &a.rel})
        if (t->rank > 0) store_head_major(host, *t);
      a.out.stride[0] = 64, a.out.stride[1] = a.out.shape[0] * 64;  // the same elements, so the same buffer
      for (flashrel_tensor* t : {&a.q, &a.k_cache, &a.v_cache, &a.out, &a.rel_logits, &a.rel})
        for (int dim = 0; dim + 1 < t->rank; ++dim)
          if (t->shape[dim] == 1) t->stride[dim] = std::int64_t{1} << 61;
      expect_right(host);
    }
}

// flashrel_merge of two parts of one row, in the given memory.
RunResult merge_two(MemoryKind memory, const std::vector<float>& parts_out, const std::vector<float>& parts_lse) {
  const auto n_heads = static_cast<std::int64_t>(parts_lse.size() / 2),
             dim = static_cast<std::int64_t>(parts_out.size() / parts_lse.size());
  RunResult merged;
  merged.out.resize(parts_out.size() / 2), merged.lse.resize(parts_lse.size() / 2);
  const std::size_t out_bytes = merged.out.size() * sizeof(float), lse_bytes = merged.lse.size() * sizeof(float);
  check::Block parts_o, parts_l, out, lse;
  for (const auto& [block, bytes] :
       {std::pair{&parts_o, 2 * out_bytes}, {&parts_l, 2 * lse_bytes}, {&out, out_bytes}, {&lse, lse_bytes}})
    EXPECT_TRUE(check::Block::allocate(memory, bytes, *block).ok());
  EXPECT_TRUE(check::copy_in(memory, parts_o.data(), parts_out.data(), 2 * out_bytes).ok());
  EXPECT_TRUE(check::copy_in(memory, parts_l.data(), parts_lse.data(), 2 * lse_bytes).ok());
  flashrel_merge_args merge;
  flashrel_merge_args_init(&merge, sizeof merge);
  merge.memory = static_cast<std::int32_t>(memory);
  merge.parts_out = check::make_tensor(parts_o.data(), DType::kFloat32, {2, 1, n_heads, dim});
  merge.parts_lse = check::make_tensor(parts_l.data(), DType::kFloat32, {2, 1, n_heads});
  merge.out = check::make_tensor(out.data(), DType::kFloat32, {1, n_heads, dim});
  merge.lse = check::make_tensor(lse.data(), DType::kFloat32, {1, n_heads});
  EXPECT_EQ(flashrel_merge(&merge, nullptr), FLASHREL_OK) << flashrel_last_error();
  EXPECT_TRUE(check::synchronize(memory).ok());
  EXPECT_TRUE(check::copy_out(memory, merged.out.data(), out.data(), out_bytes).ok());
  EXPECT_TRUE(check::copy_out(memory, merged.lse.data(), lse.data(), lse_bytes).ok());
  return merged;
}

// Key ranges [0, cut) and [cut, kv_len) of one decode row, run apart and merged: the whole again. The first range stands
// further away, which rel_zero tells.
TEST(Metamorphic, MergedKeyRangesAreTheWhole) {
  constexpr int kKeys = 320;
  for (const char* dtype : {"fp32", "bf16"})
    for (const int cut : {16, 160, 304}) {
      const std::string line =
          std::string("q=1 kv=320 hq=8 hkv=2 d=64 page=16 extent=200 bias=logits shuffled=0 dtype=") + dtype;
      HostProblem whole = make(line);
      Reference reference = reference_of(whole);
      // Each part was rounded to the dtype once more.
      for (double& allowance : reference.out_allowance) allowance *= 2;
      for (double& allowance : reference.column_allowance) allowance *= 2;
      for (const Runner& runner : runners_for(whole)) {
        std::vector<float> parts_out, parts_lse;
        for (const Range keys : {Range{0, cut}, Range{cut, kKeys}}) {
          HostProblem part = make(line);
          part.args.block_table.data = static_cast<std::int32_t*>(part.args.block_table.data) + keys.begin / 16;
          part.args.block_table.shape[1] -= keys.begin / 16;
          static_cast<std::int32_t*>(part.args.cache_seqlens.data)[0] = keys.size();
          part.args.rel_zero = kKeys - keys.end;
          const RunResult result = run(runner, part);
          if (refused(runner, result)) break;
          ASSERT_TRUE(result.status.ok()) << result.status.text;
          parts_out.insert(parts_out.end(), result.out.begin(), result.out.end());
          parts_lse.insert(parts_lse.end(), result.lse.begin(), result.lse.end());
        }
        if (!parts_out.empty())
          expect_verdict(runner, whole, reference, merge_two(runner.options.memory, parts_out, parts_lse));
      }
    }
}

// A window's work does not grow with kv_len: counted in key tiles of the real plan's schedule, not on the clock.
TEST(Metamorphic, AWindowCostsWhatItHolds) {
  const auto tiles_of = [](const std::string& case_line, const char* backend, MemoryKind memory) {
    const HostProblem host = make(case_line);
    Call call;
    EXPECT_TRUE(check::describe(host, call).ok());
    call.problem.memory = memory;
    call.options.backend = backend;
    Device device;
    device.memory = memory;
    device.capability_major = 9, device.n_sms = 132, device.max_smem_bytes = 227 << 10, device.n_threads = 4;
    Plan plan;
    if (!make_plan(call.problem, device, call.options, plan).ok()) return std::int64_t{-1};
    return batch_tiles(plan.schedule, [&](int seq) {
      return Lengths{call.tensors.cu_seqlens_q[seq + 1] - call.tensors.cu_seqlens_q[seq], call.tensors.cache_seqlens[seq]};
    });
  };
  for (const char* q : {"q=1", "q=70"})
    for (const auto& [backend, memory] : {std::pair{"cpu", MemoryKind::kHost}, std::pair{"mma", MemoryKind::kCuda}}) {
      const std::string shape = " hq=4 hkv=1 d=64 page=64 window=511 extent=512 bias=fused dtype=bf16";
      const std::int64_t near = tiles_of(q + std::string(" kv=1024") + shape, backend, memory);
      if (near < 0) continue;  // not built
      for (const char* kv : {" kv=2048", " kv=16384"})
        EXPECT_EQ(tiles_of(q + std::string(kv) + shape, backend, memory), near) << backend;
      EXPECT_GT(tiles_of(q + std::string(" kv=16384 hq=4 hkv=1 d=64 page=64 bias=none dtype=bf16"), backend, memory), 4 * near);
    }
}

}  // namespace
}  // namespace flashrel::test
