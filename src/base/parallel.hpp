// Threads of the CPU backend: one small pool, or the host's own threads through a hook.
#pragma once

#include "base/status.hpp"

namespace flashrel {

using Task = void (*)(void* context, int index);
using ParallelFor = void (*)(void* pool, int n_tasks, Task task, void* context);

// Runs task(context, i) for i in [0, n_tasks) and returns when all are done. Concurrent callers take turns;
// a call from inside a task runs serially.
void parallel_for(int n_tasks, Task task, void* context);
// How many tasks run at once.
int parallel_width();

Status set_parallel_for(ParallelFor hook, void* pool, int n_threads);
Status set_num_threads(int n_threads);  // 0 = FLASHREL_NUM_THREADS, or the CPUs this process may use

}  // namespace flashrel
