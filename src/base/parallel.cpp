#include "base/parallel.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace flashrel {
namespace {

thread_local bool inside_task = false;

// One call's work. Tasks are claimed through `next`.
struct Job {
  int n_tasks = 0;
  Task task = nullptr;
  void* context = nullptr;
  std::atomic<int> next{0};

  void work() {
    inside_task = true;
    for (int i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n_tasks;) task(context, i);
    inside_task = false;
  }
};

// Threads that wait for jobs; the caller is one of the workers. A job is published under the mutex, and is over when the
// tasks are claimed and no worker holds it any more.
class Pool {
 public:
  explicit Pool(int n_threads) : owner_(getpid()) {
    try {
      for (int i = 1; i < n_threads; ++i) threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error&) {
      // Fewer threads than asked for: the work is done all the same.
    }
  }

  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int width() const { return static_cast<int>(threads_.size()) + 1; }
  bool belongs_to_this_process() const { return owner_ == getpid(); }

  void run(int n_tasks, Task task, void* context) {
    Job job;
    job.n_tasks = n_tasks;
    job.task = task;
    job.context = context;
    {
      const std::lock_guard lock(mutex_);
      job_ = &job;
      ++generation_;
    }
    published_.store(generation_, std::memory_order_release);
    wake_.notify_all();
    job.work();
    std::unique_lock lock(mutex_);
    job_ = nullptr;
    idle_.wait(lock, [this] { return n_busy_ == 0; });
  }

 private:
  // Wake-ups cost tens of microseconds, a decode step's calls follow each other within a few: look before sleeping.
  static constexpr int kSpins = 2000;

  void serve() {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    while (true) {
      lock.unlock();
      for (int i = 0; i < kSpins && published_.load(std::memory_order_acquire) == seen; ++i) pause();
      lock.lock();
      wake_.wait(lock, [&] { return stopping_ || generation_ != seen; });
      if (stopping_) return;
      seen = generation_;
      Job* job = job_;
      if (job == nullptr) continue;
      ++n_busy_;
      lock.unlock();
      job->work();
      lock.lock();
      if (--n_busy_ == 0) idle_.notify_all();
    }
  }

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
  }

  const pid_t owner_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  Job* job_ = nullptr;
  std::uint64_t generation_ = 0;
  std::atomic<std::uint64_t> published_{0};
  int n_busy_ = 0;
  bool stopping_ = false;
};

struct Shared {
  std::mutex turn;  // one call at a time
  Pool* pool = nullptr;
  std::atomic<int> n_threads{0};  // 0 = not decided yet
  std::atomic<ParallelFor> hook{nullptr};
  void* hook_pool = nullptr;
  std::atomic<int> hook_threads{0};
};

// Never destroyed: calls may still run while the process exits.
Shared& shared() {
  static Shared* const s = new Shared;
  return *s;
}

int default_threads() {
  if (const char* text = std::getenv("FLASHREL_NUM_THREADS")) {
    char* end = nullptr;
    const long n = std::strtol(text, &end, 10);
    if (end != text && *end == '\0' && n >= 1 && n <= 4096) return static_cast<int>(n);
  }
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0) return std::max(1, CPU_COUNT(&cpus));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int own_threads() {
  Shared& s = shared();
  int n = s.n_threads.load(std::memory_order_acquire);
  if (n == 0) {
    n = default_threads();
    s.n_threads.store(n, std::memory_order_release);
  }
  return n;
}

void run_serially(int n_tasks, Task task, void* context) {
  for (int i = 0; i < n_tasks; ++i) task(context, i);
}

}  // namespace

void parallel_for(int n_tasks, Task task, void* context) {
  Shared& s = shared();
  if (n_tasks <= 1 || inside_task) return run_serially(n_tasks, task, context);
  if (const ParallelFor hook = s.hook.load(std::memory_order_acquire)) return hook(s.hook_pool, n_tasks, task, context);
  const std::lock_guard turn(s.turn);
  const int n_threads = own_threads();
  if (s.pool != nullptr && !s.pool->belongs_to_this_process()) s.pool = nullptr;  // a fork left its threads behind
  if (s.pool == nullptr && n_threads > 1) s.pool = new Pool(n_threads);
  if (s.pool == nullptr) return run_serially(n_tasks, task, context);
  s.pool->run(n_tasks, task, context);
}

int parallel_width() {
  Shared& s = shared();
  return s.hook.load(std::memory_order_acquire) != nullptr ? s.hook_threads.load() : own_threads();
}

Status set_parallel_for(ParallelFor hook, void* pool, int n_threads) {
  if (hook != nullptr && n_threads < 1)
    return invalid("n_threads: got " + std::to_string(n_threads) + ", expected at least 1 with a parallel_for");
  Shared& s = shared();
  const std::lock_guard turn(s.turn);
  s.hook_pool = pool;
  s.hook_threads.store(n_threads);
  s.hook.store(hook, std::memory_order_release);
  return {};
}

Status set_num_threads(int n_threads) {
  if (n_threads < 0 || n_threads > 4096)
    return invalid("n_threads: got " + std::to_string(n_threads) + ", expected 0 (automatic) to 4096");
  Shared& s = shared();
  const std::lock_guard turn(s.turn);
  if (s.pool != nullptr && s.pool->belongs_to_this_process()) delete s.pool;
  s.pool = nullptr;
  s.n_threads.store(n_threads == 0 ? default_threads() : n_threads, std::memory_order_release);
  return {};
}

}  // namespace flashrel
