#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "api/describe.hpp"
#include "cli/commands.hpp"
#include "cli/text.hpp"

namespace flashrel::cli {
namespace {

std::string yes_or(bool yes, const nlohmann::json& reason) {
  if (yes) return "yes";
  return reason.get<std::string>().empty() ? "no" : "no: " + reason.get<std::string>();
}

}  // namespace

int info(bool as_json) {
  const std::string text = describe_build();
  if (as_json) {
    fmt::print("{}\n", text);
    return kFine;
  }
  const auto build = nlohmann::json::parse(text);
  fmt::print("FlashRel {}, GPU backends {}\n\n", build["version"].get<std::string>(),
             build["cuda_build"].get<bool>() ? "compiled in" : "not compiled in");

  const auto& cpu = build["cpu"];
  fmt::print("CPU: {} threads, {} in use (FLASHREL_CPU_ISA forces another)\n", cpu["threads"].get<int>(),
             cpu["isa"].get<std::string>());
  Table isas({"instruction set", "usable"}, 2);
  for (const auto& isa : cpu["isas"]) isas.add({isa["name"], yes_or(isa["usable"], isa["reason"])});
  fmt::print("{}\n", isas.text());

  if (build["gpus"].empty()) {
    fmt::print("GPUs: none: {}\n\n", build["gpus_reason"].get<std::string>());
  } else {
    Table gpus({"GPU", "capability", "SMs", "nominal read", "nominal bf16"}, 2);
    for (const auto& gpu : build["gpus"])
      gpus.add({gpu["name"], fmt::format("sm_{}", gpu["capability"].get<int>()), fmt::format("{}", gpu["sms"].get<int>()),
                fmt::format("{:.0f} GB/s", gpu["nominal_read_gb_per_s"].get<double>()),
                fmt::format("{:.0f} TFLOP/s", gpu["nominal_matrix_tflop_per_s"].get<double>())});
    fmt::print("{}\n", gpus.text());
  }

  Table backends({"backend", "memory", "takes part in auto"}, 2);
  for (const auto& backend : build["backends"])
    backends.add({backend["name"], backend["memory"], yes_or(backend["on"], backend["reason"])});
  fmt::print("Backends, in routing order:\n{}", backends.text());
  return kFine;
}

}  // namespace flashrel::cli
