// `flashrel`: the command line. Each command's work is in its own file; here are its options and its help.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "check/case_line.hpp"
#include "cli/commands.hpp"
#include "cli/source.hpp"
#include "cli/text.hpp"
#include "flashrel/flashrel.h"

namespace flashrel::cli {
namespace {

const char* const kAbout =
    "FlashRel: paged, variable-length, grouped-query attention with a learned, banded relative bias.\n"
    "\n"
    "A problem is a .safetensors file, or a case line such as\n"
    "    q=1 kv=131072 b=1 hq=8 hkv=1 d=128 page=64 window=-1 extent=1024 bias=fused dtype=bf16\n"
    "(`flashrel cases` explains every key). A first tour:\n"
    "    flashrel info                                          what this machine can run, and why not the rest\n"
    "    flashrel plan q=2048 kv=32768 --device sm90            how a case would run there, with a map of its tiles\n"
    "    flashrel make q=64 kv=900 page=16 -o P.safetensors     a problem file\n"
    "    flashrel run P.safetensors -o R.safetensors            its result\n"
    "    flashrel check P.safetensors                           every backend against the float64 definition\n"
    "    flashrel verify                                        the whole conformance matrix\n"
    "    flashrel bench --case q=1 kv=32768                     speed beside the machine's own ceilings\n"
    "\n"
    "Exit codes: 0 fine, 1 wrong result, 2 bad input (one sentence on stderr, no output file).\n";

void add_choice(CLI::App* command, Choice& choice) {
  command->add_option("--backend", choice.backend, "only this backend, even one that is off; default: all present");
  command->add_option("--route", choice.route, "only this route: score_mod, sheared or fused; default: all that fit the bias");
  command->add_option("--num-splits", choice.num_splits, "instead of the problem's own; 0 = automatic")
      ->check(CLI::NonNegativeNumber);
}

int list_cases(const std::string& file) {
  if (file.empty()) {
    Table keys({"key", "meaning"});
    for (const check::KeyHelp& key : check::case_keys()) keys.add({key.name, key.meaning});
    std::fputs(keys.text().c_str(), stdout);
    std::string names;
    for (const EmbeddedCases& embedded : embedded_cases()) names += " " + embedded.name;
    std::printf("\nCase files compiled in:%s (`flashrel cases NAME` prints one)\n", names.c_str());
    return kFine;
  }
  std::vector<check::CaseLine> cases;
  if (Status status = read_cases(file, cases); !status.ok()) return fail(status);
  for (const check::CaseLine& line : cases) std::puts(line.text.c_str());
  return kFine;
}

// Everything that the parser writes to; lives until the chosen command has run.
struct Options {
  bool info_json = false;
  PlanOptions plan;
  MakeOptions make;
  RunCommand run;
  CheckOptions check;
  VerifyOptions verify;
  BenchOptions bench;
  bool all_isas = false, quick = false;
  std::string case_file;
};

void add_plan(CLI::App& app, Options& o) {
  CLI::App* command =
      app.add_subcommand("plan", "how a problem would run: route and refusals, tiles, splits, workspace, bound, map");
  command->add_option("problem", o.plan.words, "a problem file or the words of a case line")->required();
  command->add_option("--device", o.plan.device, "here, cpu, or a GPU that need not be there: sm80 sm86 sm89 sm90 sm100 sm120");
  command->add_option("--backend", o.plan.backend, "force a backend");
  command->add_option("--route", o.plan.route, "force a route: score_mod, sheared, fused");
  command->add_option("--num-splits", o.plan.num_splits, "instead of the problem's own")->check(CLI::NonNegativeNumber);
  command->add_option("--seq", o.plan.seq, "sequence to draw; default: the one with most work")->check(CLI::NonNegativeNumber);
  command->add_option("--svg", o.plan.svg, "also draw the map into this file");
  command->add_flag("--measure", o.plan.measure, "measure the CPU's ceilings first (2 s), to predict its bound");
  command->add_flag("--json", o.plan.json, "the plan as JSON, nothing else");
  command->footer("Example: flashrel plan q=200,1,137 kv=900,1,1408 window=511 page=16 --device cpu --svg map.svg");
}

void add_make_and_run(CLI::App& app, Options& o) {
  CLI::App* make = app.add_subcommand("make", "a problem file from a case line and a seed");
  make->add_option("case", o.make.words, "the words of a case line")->required();
  make->add_option("-o,--output", o.make.output, "the .safetensors file to write")->required();
  make->add_option("--seed", o.make.seed, "same case and seed, same bits");
  make->add_flag("--expected", o.make.expected, "also store out and lse of the float64 definition");
  make->footer("Example: flashrel make q=128 kv=1408 hq=8 hkv=1 page=16 bias=logits extent=512 -o chunk.safetensors --seed 7");

  CLI::App* run = app.add_subcommand("run", "the result of a problem file, as float32 out and lse");
  run->add_option("problem", o.run.problem, "a .safetensors problem file")->required();
  run->add_option("-o,--output", o.run.output, "the .safetensors file to write")->required();
  run->add_option("--backend", o.run.backend, "auto, or a backend by name: an error when it cannot serve");
  run->add_option("--route", o.run.route, "auto, score_mod, sheared or fused");
  run->add_option("--on", o.run.memory, "memory to run in: host, cuda, or auto = where the named backend lives, else host")
      ->check(CLI::IsMember({"auto", "host", "cuda"}));
  run->add_option("--num-splits", o.run.num_splits, "instead of the file's own; 0 = automatic")->check(CLI::NonNegativeNumber);
  run->add_flag("--memory", o.run.show_memory, "print the peak of memory beside inputs + outputs + workspace");
  run->footer("Example: flashrel run P.safetensors -o R.safetensors --backend cpu --num-splits 3");
}

void add_check_and_verify(CLI::App& app, Options& o) {
  CLI::App* check =
      app.add_subcommand("check", "every backend that can serve against the file's out, or the float64 definition");
  check->add_option("problems", o.check.problems, "problem files");
  check->add_option("--case", o.check.case_words, "or the words of a case line")->expected(-1);
  check->add_option("--seed", o.check.seed, "of the case line");
  check->add_flag("--all-isas", o.all_isas, "repeat for every CPU instruction set that this machine has");
  add_choice(check, o.check.choice);
  check->footer(
      "Example: flashrel check --all-isas tests/golden/*.safetensors\nA row may err twice as much as plain loops in the same "
      "precision do, plus 1e-5.");

  CLI::App* verify = app.add_subcommand("verify", "a matrix of cases on every backend and route present");
  verify->add_option("--cases", o.verify.files, "case files, on disk or compiled in; default: conformance");
  verify->add_flag("--quick", o.quick, "the short list instead");
  verify->add_option("--seed", o.verify.seed, "of the generated problems");
  verify->add_option("--max-rows", o.verify.max_rows, "judge at most so many rows a case, spread over the batch; 0 = all");
  verify->add_flag("--all-isas", o.all_isas, "repeat for every CPU instruction set that this machine has");
  add_choice(verify, o.verify.choice);
  verify->footer("Example: flashrel verify --quick --backend cpu --all-isas");
}

void add_bench(CLI::App& app, Options& o) {
  CLI::App* bench =
      app.add_subcommand("bench", "median times beside the machine's own measured ceilings, results checked in the run");
  bench->add_option("--cases", o.bench.files, "case files, on disk or compiled in (bench_cpu, bench_gpu)");
  bench->add_option("--case", o.bench.case_words, "or the words of a case line")->expected(-1);
  bench->add_option("--seconds", o.bench.seconds, "measured a case and target")->check(CLI::PositiveNumber);
  bench->add_option("--json", o.bench.json, "also write figures and machine into this file");
  bench->add_option("--svg", o.bench.svg, "also plot into this file");
  bench->add_option("--note", o.bench.note, "a text kept in the JSON, such as the commit");
  bench->add_flag("--memory", o.bench.show_memory, "print the peak of memory");
  add_choice(bench, o.bench.choice);
  bench->footer(
      "Example: flashrel bench --backend cpu --json cpu.json --svg cpu.svg\nCaches are cold: every call reads another copy of "
      "its inputs when they would fit.");
}

int dispatch(const CLI::App& app, Options& o, int argc, char** argv) {
  if (app.got_subcommand("info")) return info(o.info_json);
  if (app.got_subcommand("cases")) return list_cases(o.case_file);
  if (app.got_subcommand("plan")) return plan(o.plan);
  if (app.got_subcommand("make")) return make(o.make);
  if (app.got_subcommand("run")) return run(o.run);
  if (app.got_subcommand("bench")) return bench(o.bench);
  if (o.all_isas) return run_for_all_isas(argc, argv);
  if (app.got_subcommand("check")) return check_command(o.check);
  if (o.verify.files.empty()) o.verify.files = {o.quick ? "quick" : "conformance"};
  return verify(o.verify);
}

int main_function(int argc, char** argv) {
  Options options;
  CLI::App app(kAbout, "flashrel");
  app.require_subcommand(1);
  app.set_version_flag("--version", flashrel_version());
  app.add_subcommand("info", "build, CPU, GPUs, backends with the reason for each that is off")
      ->add_flag("--json", options.info_json, "as JSON");
  app.add_subcommand("cases", "the keys of a case line; the case files that are compiled in")
      ->add_option("file", options.case_file, "a case file to print");
  add_plan(app, options);
  add_make_and_run(app, options);
  add_check_and_verify(app, options);
  add_bench(app, options);
  try {
    app.parse(argc, argv);
    return dispatch(app, options, argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kFine : kBadInput;
  } catch (const std::bad_alloc&) {
    return fail(runtime_error("out of host memory"));
  }
}

}  // namespace
}  // namespace flashrel::cli

int main(int argc, char** argv) { return flashrel::cli::main_function(argc, argv); }
