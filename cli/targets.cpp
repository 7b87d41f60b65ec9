#include "cli/targets.hpp"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "api/device.hpp"
#include "backend/backend.hpp"
#include "backend/cpu/cpu.hpp"
#include "plan/make_plan.hpp"

namespace flashrel::cli {
namespace {

// Routes worth a run of their own. On the host there is one a bias mode, which `auto` takes.
std::vector<std::string> routes_for(MemoryKind memory, BiasMode bias) {
  if (memory == MemoryKind::kHost) return {"auto"};
  switch (bias) {
    case BiasMode::kLogits: return {"score_mod", "sheared"};
    case BiasMode::kFused: return {"fused"};
    default: return {"auto"};
  }
}

// "" when the backend serves the problem by this route on the device; else why not. `taken`: the route of the plan.
std::string refusal(const check::HostProblem& host, const check::RunOptions& run, const Device& device, Route& taken) {
  flashrel_attention_args args = host.args;
  args.memory = static_cast<std::int32_t>(run.memory);
  args.backend = run.backend.c_str();
  args.route = run.route.c_str();
  Call call;
  Plan plan;
  if (Status status = validate(args, call); !status.ok()) return status.text;
  if (Status status = make_plan(call.problem, device, call.options, plan); !status.ok()) return status.text;
  taken = plan.policy.route;
  if (run.route != "auto" && run.route != name_of(taken)) return "route: " + run.backend + " takes " + name_of(taken) + " only";
  return "";
}

class Finder {
 public:
  Finder(const check::HostProblem& host, const Choice& choice, Targets& targets)
      : host_(host), choice_(choice), targets_(targets) {
    Call call;
    if (validate(host.args, call).ok()) bias_ = call.problem.bias;
  }

  void walk(MemoryKind memory, const Device& device, const std::string& no_device) {
    for (const Backend* backend : backends_for(memory)) {
      const std::string name(backend->name);
      if (choice_.backend != "all" && choice_.backend != name) continue;
      std::string reason = no_device;
      if (reason.empty() && choice_.backend == "all") reason = backend->off_reason();
      if (!reason.empty()) {
        targets_.skipped.push_back({name, reason});
        continue;
      }
      if (choice_.route != "all")
        add(memory, device, name, choice_.route);
      else
        for (const std::string& route : routes_for(memory, bias_)) add(memory, device, name, route);
    }
  }

 private:
  void add(MemoryKind memory, const Device& device, const std::string& backend, const std::string& route) {
    Target target;
    target.options = {.memory = memory, .backend = backend, .route = route, .num_splits = choice_.num_splits};
    target.name = memory == MemoryKind::kHost ? fmt::format("{} ({})", backend, cpu::isa_in_use()) : backend;
    Route taken = Route::kNone;
    const std::string reason = refusal(host_, target.options, device, taken);
    const std::string shown = reason.empty() ? name_of(taken) : route;
    if (shown != "none" && shown != "auto") target.name += ", " + shown;
    if (reason.empty())
      targets_.runnable.push_back(target);
    else
      targets_.skipped.push_back({target.name, reason});
  }

  const check::HostProblem& host_;
  const Choice& choice_;
  Targets& targets_;
  BiasMode bias_ = BiasMode::kNone;
};

}  // namespace

Targets find_targets(const check::HostProblem& host, const Choice& choice) {
  Targets targets;
  Finder finder(host, choice, targets);
  finder.walk(MemoryKind::kHost, host_device(), "");
  static std::string no_gpu;
  static const std::vector<Device> gpus = cuda_devices(no_gpu);
  finder.walk(MemoryKind::kCuda, gpus.empty() ? Device{} : gpus[0], gpus.empty() ? no_gpu : "");
  return targets;
}

int run_for_all_isas(int argc, char** argv) {
  std::vector<char*> args;
  for (int i = 0; i < argc; ++i)
    if (std::strcmp(argv[i], "--all-isas") != 0) args.push_back(argv[i]);
  args.push_back(nullptr);
  int worst = 0;
  for (const cpu::IsaState& isa : cpu::isa_states()) {
    if (!isa.reason.empty()) {
      fmt::print("== {}: skipped: {}\n", isa.name, isa.reason);
      continue;
    }
    fmt::print("== {}\n", isa.name);
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      setenv("FLASHREL_CPU_ISA", isa.name.c_str(), 1);
      execv("/proc/self/exe", args.data());
      _exit(127);
    }
    int state = 0;
    waitpid(child, &state, 0);
    worst = std::max(worst, WIFEXITED(state) ? WEXITSTATUS(state) : 1);
  }
  return worst;
}

}  // namespace flashrel::cli
