#include "plan/route.hpp"

#include <string>

#include "backend/backend.hpp"

namespace flashrel {
namespace {

// Route names are legal only with the bias mode they serve.
std::string route_conflict(const Problem& problem, const std::string& route) {
  const std::string mode = name_of(problem.bias);
  if (route == "auto") return "";
  if (route == "score_mod" || route == "sheared")
    return problem.bias == BiasMode::kLogits ? ""
                                             : "route: got " + route + " with bias mode " + mode + ", expected mode logits";
  if (route == "fused")
    return problem.bias == BiasMode::kFused ? "" : "route: got fused with bias mode " + mode + ", expected mode fused";
  return "route: got '" + route + "', expected auto, score_mod, sheared or fused";
}

std::string names_of(std::span<const Backend* const> list) {
  std::string names = "auto";
  for (const Backend* backend : list) names += ", " + std::string(backend->name);
  return names;
}

}  // namespace

Status choose_backend(const Problem& problem, const Device& device, const Options& options, Plan& plan) {
  if (std::string conflict = route_conflict(problem, options.route); !conflict.empty()) return invalid(conflict);
  const auto list = backends_for(problem.memory);
  const bool forced = options.backend != "auto";
  for (const Backend* backend : list) {
    if (forced && backend->name != options.backend) continue;
    std::string reason = forced ? "" : backend->off_reason();
    if (reason.empty()) reason = backend->supports(problem, device, options);
    plan.considered.push_back({std::string(backend->name), reason});
    if (reason.empty()) {
      plan.backend = backend;
      return {};
    }
    if (forced) return unsupported("backend: " + options.backend + " cannot serve this call: " + reason);
  }
  const char* memory = problem.memory == MemoryKind::kHost ? "host" : "CUDA";
  if (forced) return invalid("backend: got '" + options.backend + "', expected for " + memory + " memory: " + names_of(list));
  std::string all = std::string("backend: no backend serves this call in ") + memory + " memory";
  for (const Refusal& refusal : plan.considered) all += "; " + refusal.backend + ": " + refusal.reason;
  return unsupported(all);
}

}  // namespace flashrel
