// Plain threads for the slow references and generators; independent of the CPU backend's pool, which they judge.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace flashrel::check {

// Calls work(index) once for every index of [0, n), on all CPUs.
template <class Work>
void for_each_index(std::int64_t n, Work&& work) {
  std::atomic<std::int64_t> next{0};
  const auto loop = [&] {
    for (std::int64_t index; (index = next.fetch_add(1, std::memory_order_relaxed)) < n;) work(index);
  };
  const std::int64_t n_threads = std::min<std::int64_t>(n, std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::thread> helpers;
  for (std::int64_t i = 1; i < n_threads; ++i) helpers.emplace_back(loop);
  loop();
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace flashrel::check
