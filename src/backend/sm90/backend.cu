// The backend's entry: what it books and which of its kernels a plan launches.
#include <string>

#include "backend/sm90/policy.hpp"
#include "backend/sm90/prefill/launch.hpp"
#include "backend/sm90/sm90.hpp"
#include "gpu/schedule.hpp"

namespace flashrel::sm90 {

const Backend kBackend{"sm90",
                       MemoryKind::kCuda,
                       [] { return std::string(); },
                       supports,
                       choose_policy,
                       [](const Problem&, Plan&) {},
                       gpu::launch_schedule,
                       prefill::launch};

}  // namespace flashrel::sm90
