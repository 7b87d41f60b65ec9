// What the backend, launch.cu and the instances share.
#pragma once

#include "base/status.hpp"
#include "core/plan.hpp"
#include "core/problem.hpp"
#include "core/tensors.hpp"

namespace flashrel::sm90::prefill {

inline constexpr int kThreads = 384;  // three warpgroups
// How the bias of a kernel instance comes.
struct NoBias {};
template <int kGroup, int kSteps>
struct FusedBias {};  // rel and rel_proj, 4, 8 or 16 query heads a KV head; steps of 16 values of d_rel
template <class Logit>
struct LogitsBias {};  // rel_logits of type Logit

// 0 = another mode.
template <class Bias>
inline constexpr int kRelSteps = 0;
template <int kGroup, int kSteps>
inline constexpr int kRelSteps<FusedBias<kGroup, kSteps>> = kSteps;
// Bytes of an entry of rel_logits; 0 = another mode.
template <class Bias>
inline constexpr int kLogitBytes = 0;
template <class Logit>
inline constexpr int kLogitBytes<LogitsBias<Logit>> = sizeof(Logit);
// Whether a job may begin with half a tile (Job::first_is_half): half of 96 keys is no whole number of boxes, and the slots of
// rel_logits hold whole tiles.
template <class Bias, int kTileKeys>
inline constexpr bool kKnowsHalves = kLogitBytes<Bias> == 0 && kTileKeys % 64 == 0;

// A CTA starts with 168 registers a thread (65,536 / 384, in steps of 8) and can only hand those around. The consumers of the
// fused bias need all that they can get; elsewhere the loading warps do better with more than 24.
template <class Bias>
inline constexpr int kOtherRegisters = kRelSteps<Bias> == 1 ? 24 : 40;
template <class Bias>
inline constexpr int kConsumerRegisters = kRelSteps<Bias> == 1 ? 240 : 232;
template <class Bias>
inline constexpr bool kRegistersFit = kOtherRegisters<Bias> + 2 * kConsumerRegisters<Bias> <= 3 * (65536 / kThreads / 8 * 8);

// Address of attention_kernel<T, Bias, kDim>, instantiated in instances/: a missing instance is a link error.
template <class T, class Bias, int kDim>
const void* kernel_address();

// Where no unit can be cut and every CTA has one item at most, the CTAs find their items themselves: a kernel less, which
// counts where the whole call takes microseconds.
inline bool schedules_itself(const Plan& plan) {
  constexpr int kMaxSeqs = 32;  // one lane each
  return plan.few_rows.empty() && plan.bounds.n_slots == 0 && plan.schedule.n_seqs <= kMaxSeqs &&
         plan.bounds.n_items <= plan.policy.n_workers;
}

// Enqueues the kernel that makes the work list, if one is needed.
Status schedule(const Problem& problem, const Tensors& tensors, const Plan& plan, void* schedule, void* stream);

// Enqueues the attention kernel.
Status launch(const Problem& problem, const Tensors& tensors, const Plan& plan, const CallMemory& memory, void* stream);

}  // namespace flashrel::sm90::prefill
