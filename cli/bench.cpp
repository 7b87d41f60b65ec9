// `flashrel bench`: medians of every target on every case, interleaved, each result spot-checked in the same run.
#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "api/device.hpp"
#include "api/validate.hpp"
#include "check/generate.hpp"
#include "check/judge.hpp"
#include "cli/bench_report.hpp"
#include "cli/commands.hpp"
#include "cli/source.hpp"
#include "cli/text.hpp"
#include "cli/timing.hpp"
#include "index/ranges.hpp"
#include "plan/cost.hpp"
#include "plan/make_plan.hpp"

namespace flashrel::cli {
namespace {

constexpr std::int64_t kSpotRows = 64;
constexpr std::size_t kWarmUps = 3, kMinRounds = 9, kMaxRounds = 5000;

// Counted from the lengths: 4 head_dim FLOP a visible pair and head; every input and output byte once.
void count_work(const Call& call, double& flops, double& bytes) {
  const Problem& p = call.problem;
  const Strides& s = p.strides;
  double pairs = 0, keys = 0, rows = 0, banded = 0;
  for (int seq = 0; seq < p.n_seqs; ++seq) {
    const Lengths lengths{call.tensors.cu_seqlens_q[(seq + 1) * s.cu_q_seq] - call.tensors.cu_seqlens_q[seq * s.cu_q_seq],
                          call.tensors.cache_seqlens[seq * s.kv_len_seq]};
    rows += lengths.q_len;
    keys += visible_keys({0, lengths.q_len}, lengths, p.visible).size();
    for (int i = 0; i < lengths.q_len; ++i) {
      pairs += visible_keys({i, i + 1}, lengths, p.visible).size();
      banded += visible_keys({i, i + 1}, lengths, intersect(p.visible, p.band)).size();
    }
  }
  const auto element = static_cast<double>(size_of(p.dtype));
  flops = 4.0 * p.head_dim * pairs * p.n_q_heads;
  bytes = 2 * keys * p.n_kv_heads * p.head_dim * element + 2 * rows * p.n_q_heads * p.head_dim * element;
  if (p.has_lse) bytes += rows * p.n_q_heads * 4;
  if (p.bias == BiasMode::kLogits) bytes += banded * p.n_q_heads * static_cast<double>(size_of(p.rel_logits_dtype));
  if (p.bias == BiasMode::kFused) bytes += (rows * p.n_q_heads + static_cast<double>(p.rel_extent)) * p.d_rel * element;
}

// What the plan of this call says it takes.
double predicted_us(const check::Placement& placement, double flops, double bytes) {
  Call call;
  Plan plan;
  Device device = host_device();
  if (!validate(placement.args(), call).ok()) return 0;
  if (call.problem.memory == MemoryKind::kCuda && !cuda_device(-1, device).ok()) return 0;
  return make_plan(call.problem, device, call.options, plan).ok() ? predict_us(plan.policy.cost, flops, bytes, device) : 0;
}

struct Peer {
  Target target;
  Rotation rotation;
  std::vector<double> us;
};

// Rounds go round the peers, so that a change of clocks meets all of them alike.
Status time_peers(std::vector<Peer>& peers, double seconds) {
  std::vector<double> warm_up;
  for (std::size_t i = 0; i < kWarmUps; ++i)
    for (Peer& peer : peers) FLASHREL_RETURN_IF_ERROR(peer.rotation.round(warm_up));
  const auto start = std::chrono::steady_clock::now();
  const double budget = seconds * static_cast<double>(peers.size());
  for (std::size_t round = 0; round < kMaxRounds; ++round) {
    for (Peer& peer : peers) FLASHREL_RETURN_IF_ERROR(peer.rotation.round(peer.us));
    const double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (round + 1 >= kMinRounds && spent > budget) break;
    if (spent > 10 * budget) break;
  }
  return {};
}

Status bench_case(const check::CaseLine& line, const BenchOptions& options, Report& report, std::vector<Skip>& skipped) {
  CopiesOf copies(line.parsed);
  check::HostProblem& host = copies.at(0);
  Call call;
  FLASHREL_RETURN_IF_ERROR(check::describe(host, call));
  Figure figure;
  figure.case_line = line.text;
  figure.is_bf16 = call.problem.dtype == DType::kBFloat16;
  count_work(call, figure.flops, figure.bytes);

  Targets targets = find_targets(host, options.choice);
  std::vector<Peer> peers(targets.runnable.size());
  for (std::size_t i = 0; i < peers.size(); ++i) {
    peers[i].target = targets.runnable[i];
    FLASHREL_RETURN_IF_ERROR(Rotation::create(copies, figure.bytes, peers[i].target, peers[i].rotation));
  }
  FLASHREL_RETURN_IF_ERROR(time_peers(peers, options.seconds));

  check::Reference reference;
  FLASHREL_RETURN_IF_ERROR(check::make_reference(host, kSpotRows, reference));
  for (Peer& peer : peers) {
    check::Placement& first = peer.rotation.first();
    FLASHREL_RETURN_IF_ERROR(first.poison());
    FLASHREL_RETURN_IF_ERROR(first.launch());
    const check::Verdict verdict = check::judge(host, reference, first.collect());
    if (!verdict.passed) fmt::print("WRONG {}\n{}\n", peer.target.name, verdict.text);
    figure.target = peer.target.name;
    figure.memory = peer.target.options.memory;
    figure.us = spread_of(peer.us);
    figure.predicted_us = predicted_us(first, figure.flops, figure.bytes);
    figure.n_copies = peer.rotation.n_copies();
    figure.correct = verdict.passed;
    report.figures.push_back(figure);
  }
  skipped.insert(skipped.end(), targets.skipped.begin(), targets.skipped.end());
  return {};
}

void print_figures(const Report& report, std::size_t begin) {
  Table table({"target", "median", "predicted", "p10 ... p90", "n", "GB/s", "of read", "TFLOP/s", "of matrix", "result"}, 2);
  for (std::size_t i = begin; i < report.figures.size(); ++i) {
    const Figure& f = report.figures[i];
    const Ceilings& c = report.ceilings(f.memory);
    table.add({f.target, time_text(f.us.median), f.predicted_us > 0 ? time_text(f.predicted_us) : "",
               time_text(f.us.low) + " ... " + time_text(f.us.high), fmt::format("{}", f.us.n),
               fmt::format("{:.1f}", f.gb_per_s()), percent_text(f.of_read(c)), fmt::format("{:.3f}", f.tflop_per_s()),
               percent_text(f.of_matrix(c)), f.correct ? "right" : "WRONG"});
  }
  fmt::print("{}", table.text());
  std::fflush(stdout);
}

Status collect_cases(const BenchOptions& options, bool on_gpu, std::vector<check::CaseLine>& cases) {
  for (const std::string& file : options.files) FLASHREL_RETURN_IF_ERROR(read_cases(file, cases));
  if (!options.case_words.empty()) {
    check::CaseLine line;
    line.text = join(options.case_words);
    FLASHREL_RETURN_IF_ERROR(check::parse_case(line.text, line.parsed));
    cases.push_back(line);
  }
  if (!cases.empty()) return {};
  return read_cases(on_gpu ? "bench_gpu" : "bench_cpu", cases);
}

}  // namespace

int bench(const BenchOptions& options) {
  MemoryKind memory = MemoryKind::kHost;
  if (options.choice.backend != "all" && !check::memory_of_backend(options.choice.backend, memory))
    return fail(invalid("--backend: got '" + options.choice.backend + "', which this build does not have"));
  std::vector<check::CaseLine> cases;
  if (Status status = collect_cases(options, memory == MemoryKind::kCuda, cases); !status.ok()) return fail(status);

  Report report;
  report.note = options.note;
  std::vector<Skip> skipped;
  bool all_right = true;
  for (const check::CaseLine& line : cases) {
    const std::size_t begin = report.figures.size();
    fmt::print("{}\n", line.text);
    if (Status status = bench_case(line, options, report, skipped); !status.ok()) return fail(status);
    for (std::size_t i = begin; i < report.figures.size(); ++i) {
      const Figure& f = report.figures[i];
      Ceilings& c = f.memory == MemoryKind::kHost ? report.host : report.gpu;
      if (c.machine.empty()) {
        c = measure_ceilings(f.memory);
        fmt::print("  {}: read {:.1f} GB/s, matrix {:.3f} TFLOP/s ({})\n", c.machine, c.read_gb_per_s, c.matrix_tflop_per_s,
                   c.how);
      }
      all_right = all_right && f.correct;
    }
    print_figures(report, begin);
  }
  for (std::size_t i = 0; i < skipped.size(); ++i)
    if (i == 0 || skipped[i].name != skipped[i - 1].name || skipped[i].reason != skipped[i - 1].reason)
      fmt::print("skipped {}: {}\n", skipped[i].name, skipped[i].reason);
  if (options.show_memory)
    fmt::print("peak memory {}, all copies included\n", bytes_text(static_cast<double>(peak_memory_bytes())));
  Status status;
  if (!options.json.empty()) status = write_text_file(options.json, report_json(report));
  if (status.ok() && !options.svg.empty()) status = write_text_file(options.svg, report_svg(report));
  if (!status.ok()) return fail(status);
  return all_right && !report.figures.empty() ? kFine : kWrong;
}

}  // namespace flashrel::cli
