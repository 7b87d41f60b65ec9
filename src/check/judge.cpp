#include "check/judge.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "check/naive.hpp"
#include "check/threads.hpp"

namespace flashrel::check {
namespace {

std::vector<RowPlace> rows_of(const Problem& p, const Tensors& t) {
  std::vector<RowPlace> rows;
  for (int seq = 0; seq < p.n_seqs; ++seq) {
    const std::int64_t first = t.cu_seqlens_q[seq * p.strides.cu_q_seq];
    const Lengths lengths{static_cast<int>(t.cu_seqlens_q[(seq + 1) * p.strides.cu_q_seq] - first),
                          t.cache_seqlens[seq * p.strides.kv_len_seq]};
    for (int i = 0; i < lengths.q_len; ++i)
      for (int head = 0; head < p.n_q_heads; ++head) rows.push_back({seq, head, i, first + i, lengths});
  }
  return rows;
}

std::vector<RowPlace> pick_rows(std::vector<RowPlace> all, std::int64_t max_rows) {
  const auto n = static_cast<std::int64_t>(all.size());
  if (max_rows <= 0 || n <= max_rows) return all;
  std::vector<RowPlace> picked;
  for (std::int64_t i = 0; i < max_rows; ++i) {
    // Evenly spread; heads differ from pick to pick because the step is rarely a multiple of their number.
    const std::int64_t at = max_rows == 1 ? n - 1 : i * (n - 1) / (max_rows - 1);
    picked.push_back(all[static_cast<std::size_t>(at)]);
  }
  return picked;
}

struct RowError {
  double rms = 0, worst = 0;  // root mean square and largest |found - expected|
  int worst_column = 0;
};

// NaN anywhere gives NaN, which no comparison with an allowance survives.
RowError row_error(const float* found, const double* expected, int n) {
  RowError error;
  double sum = 0;
  for (int d = 0; d < n; ++d) {
    const double off = std::fabs(static_cast<double>(found[d]) - expected[d]);
    sum += off * off;
    if (off <= error.worst || std::isnan(error.worst)) continue;
    error.worst = off;
    error.worst_column = d;
  }
  error.rms = std::sqrt(sum / n);
  return error;
}

// -inf must be met exactly.
double lse_error(double found, double expected) { return found == expected ? 0 : std::fabs(found - expected); }

std::string place_text(const RowPlace& row) {
  std::ostringstream text;
  text << "sequence " << row.seq << ", row " << row.token_in_seq << " of " << row.lengths.q_len << " (token " << row.token
       << ", " << row.lengths.kv_len << " keys), head " << row.head;
  return text.str();
}

std::string wrong_out_text(const RowPlace& row, const float* found, const double* expected, const RowError& error,
                           double row_allowance, double column_allowance) {
  const int d = error.worst_column;
  std::ostringstream text;
  text.precision(9);
  text << place_text(row) << ", column " << d << ": got " << found[d] << ", expected " << expected[d] << " within "
       << column_allowance << "; the row's root mean square error is " << error.rms << ", expected at most " << row_allowance;
  return text.str();
}

}  // namespace

Status make_reference(const HostProblem& host, std::int64_t max_rows, Reference& reference) {
  Call call;
  FLASHREL_RETURN_IF_ERROR(describe(host, call));
  const Problem& p = call.problem;
  const auto d = static_cast<std::size_t>(p.head_dim);
  reference = Reference{};
  reference.head_dim = p.head_dim;
  reference.n_q_heads = p.n_q_heads;
  reference.rows = pick_rows(rows_of(p, call.tensors), max_rows);
  const std::size_t n = reference.rows.size();
  reference.out.resize(n * d);
  reference.lse.resize(n);
  reference.out_allowance.resize(n);
  reference.column_allowance.resize(n);
  reference.lse_allowance.resize(n);
  reference.has_lse = host.expected_out.empty() || !host.expected_lse.empty();

  for_each_index(static_cast<std::int64_t>(n), [&](std::int64_t index) {
    const auto i = static_cast<std::size_t>(index);
    const RowPlace& row = reference.rows[i];
    const auto place = static_cast<std::size_t>(row.token * p.n_q_heads + row.head);
    double* truth = &reference.out[i * d];
    define_row(p, call.tensors, row, truth, &reference.lse[i]);
    std::vector<float> naive(d);
    float naive_lse = 0;
    naive_row(p, call.tensors, row, naive.data(), &naive_lse);
    const RowError error = row_error(naive.data(), truth, p.head_dim);
    reference.out_allowance[i] = kNaiveFactor * error.rms + kOutSlack;
    reference.column_allowance[i] = kColumnFactor * error.worst + kOutSlack;
    reference.lse_allowance[i] = kNaiveFactor * lse_error(naive_lse, reference.lse[i]) + kLseSlack;
    // A file's own result takes the definition's place only now: were it wrong, the naive error against it would excuse it.
    if (!host.expected_out.empty()) std::copy_n(&host.expected_out[place * d], d, truth);
    if (!host.expected_lse.empty()) reference.lse[i] = host.expected_lse[place];
  });
  return {};
}

Verdict judge(const HostProblem& host, const Reference& reference, const RunResult& result) {
  Verdict verdict;
  verdict.n_rows = static_cast<std::int64_t>(reference.rows.size());
  const auto fail = [&](const std::string& what) {
    verdict.text = "case: " + host.label + "\nseed: " + std::to_string(host.seed) + "\n" + what;
    return verdict;
  };
  if (!result.status.ok()) return fail("run failed: " + result.status.text);
  if (!result.damage.empty()) return fail(result.damage);

  const auto d = static_cast<std::size_t>(reference.head_dim);
  std::string first;
  for (std::size_t i = 0; i < reference.rows.size(); ++i) {
    const RowPlace& row = reference.rows[i];
    const auto place = static_cast<std::size_t>(row.token * reference.n_q_heads + row.head);
    const float* found = &result.out[place * d];
    const double* expected = &reference.out[i * d];
    const double allowance = reference.out_allowance[i], column_allowance = reference.column_allowance[i];
    const RowError error = row_error(found, expected, reference.head_dim);
    bool right = error.rms <= allowance && error.worst <= column_allowance;
    if (!right && first.empty()) first = wrong_out_text(row, found, expected, error, allowance, column_allowance);
    verdict.worst = std::max({verdict.worst, error.rms / allowance, error.worst / column_allowance});

    if (reference.has_lse && !result.lse.empty()) {
      const double lse = result.lse[place], lse_allowance = reference.lse_allowance[i];
      const double off = lse_error(lse, reference.lse[i]);
      verdict.worst = std::max(verdict.worst, off / lse_allowance);
      if (!(off <= lse_allowance)) {
        right = false;
        std::ostringstream text;
        text.precision(9);
        text << place_text(row) << ", lse: got " << lse << ", expected " << reference.lse[i] << " within " << lse_allowance;
        if (first.empty()) first = text.str();
      }
    }
    verdict.n_wrong += right ? 0 : 1;
  }
  if (verdict.n_wrong > 0)
    return fail(std::to_string(verdict.n_wrong) + " of " + std::to_string(verdict.n_rows) + " rows wrong; first: " + first);
  verdict.passed = true;
  return verdict;
}

}  // namespace flashrel::check
