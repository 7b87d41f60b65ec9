// The backend's entry: what it books and which of its kernels a plan launches.
#include <string>

#include "backend/sm90/policy.hpp"
#include "backend/sm90/prefill/launch.hpp"
#include "backend/sm90/sm90.hpp"
#include "gpu/schedule.hpp"

namespace flashrel::sm90 {
namespace {

void book_workspace(const Problem&, const Plan& plan, Workspace& workspace) { gpu::book_schedule(plan, workspace); }

}  // namespace

const Backend kBackend{"sm90",         MemoryKind::kCuda, [] { return std::string(); }, supports, choose_policy,
                       book_workspace, prefill::launch};

}  // namespace flashrel::sm90
