#include "cli/timing.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "check/generate.hpp"

#if defined(FLASHREL_WITH_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace flashrel::cli {
namespace {

constexpr double kMaxCopies = 64;
constexpr double kMaxHostCacheBytes = 512e6;  // a virtual machine may report its whole host's cache

double cache_bytes(MemoryKind memory) {
#if defined(FLASHREL_WITH_CUDA)
  if (memory == MemoryKind::kCuda) {
    int device = 0, bytes = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device);
    return bytes;
  }
#endif
  static_cast<void>(memory);
  return std::clamp(static_cast<double>(sysconf(_SC_LEVEL3_CACHE_SIZE)), 32e6, kMaxHostCacheBytes);
}

#if defined(FLASHREL_WITH_CUDA)
Status cuda_status(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return {};
  return runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}
#endif

}  // namespace

check::HostProblem& CopiesOf::at(std::size_t i) {
  while (hosts_.size() <= i) hosts_.push_back(check::generate(case_, hosts_.size() + 1));
  return hosts_[i];
}

Status Rotation::create(CopiesOf& copies, double bytes_a_call, const Target& target, Rotation& rotation) {
  rotation = Rotation{};
  const MemoryKind memory = target.options.memory;
  rotation.on_gpu_ = memory == MemoryKind::kCuda;
  // Twice the cache passes between two uses of a copy.
  const double n = std::ceil(2 * cache_bytes(memory) / std::max(bytes_a_call, 1.0)) + 1;
  const auto n_copies = static_cast<std::size_t>(std::clamp(n, 1.0, kMaxCopies));
  rotation.placements_.resize(n_copies);
  for (std::size_t i = 0; i < n_copies; ++i) {
    // On a GPU the copies differ in their addresses alone.
    check::HostProblem& host = copies.at(rotation.on_gpu_ ? 0 : i);
    FLASHREL_RETURN_IF_ERROR(check::Placement::create(host, target.options, rotation.placements_[i]));
    FLASHREL_RETURN_IF_ERROR(rotation.placements_[i].poison());
  }
  return rotation.on_gpu_ ? rotation.capture() : Status{};
}

Rotation& Rotation::operator=(Rotation&& other) noexcept {
  std::swap(placements_, other.placements_);
  std::swap(next_, other.next_);
  std::swap(on_gpu_, other.on_gpu_);
  std::swap(graph_, other.graph_);
  std::swap(stream_, other.stream_);
  std::swap(begin_, other.begin_);
  std::swap(end_, other.end_);
  return *this;
}

#if defined(FLASHREL_WITH_CUDA)

Status Rotation::capture() {
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  FLASHREL_RETURN_IF_ERROR(cuda_status("cudaStreamCreate", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)));
  stream_ = stream;
  FLASHREL_RETURN_IF_ERROR(cuda_status("cudaEventCreate", cudaEventCreate(&begin)));
  begin_ = begin;
  FLASHREL_RETURN_IF_ERROR(cuda_status("cudaEventCreate", cudaEventCreate(&end)));
  end_ = end;
  // One call outside the capture: the library may load its code on first use.
  FLASHREL_RETURN_IF_ERROR(placements_.front().launch(stream));
  FLASHREL_RETURN_IF_ERROR(cuda_status("cudaStreamSynchronize", cudaStreamSynchronize(stream)));

  cudaGraph_t graph = nullptr;
  FLASHREL_RETURN_IF_ERROR(
      cuda_status("cudaStreamBeginCapture", cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal)));
  Status status;
  for (check::Placement& placement : placements_)
    if (status.ok()) status = placement.launch(stream);
  const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
  if (status.ok()) status = cuda_status("cudaStreamEndCapture", ended);
  cudaGraphExec_t ready = nullptr;
  if (status.ok()) status = cuda_status("cudaGraphInstantiate", cudaGraphInstantiate(&ready, graph, 0));
  graph_ = ready;
  if (graph != nullptr) cudaGraphDestroy(graph);
  return status;
}

Rotation::~Rotation() {
  if (graph_ != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph_));
  if (begin_ != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(begin_));
  if (end_ != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(end_));
  if (stream_ != nullptr) cudaStreamDestroy(static_cast<cudaStream_t>(stream_));
}

#else

Status Rotation::capture() { return runtime_error("memory: this build has no GPU backends"); }
Rotation::~Rotation() = default;

#endif

Status Rotation::round(std::vector<double>& us) {
  using Clock = std::chrono::steady_clock;
  if (!on_gpu_) {
    const auto start = Clock::now();
    FLASHREL_RETURN_IF_ERROR(placements_[next_].launch());
    us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    next_ = (next_ + 1) % placements_.size();
    return {};
  }
#if defined(FLASHREL_WITH_CUDA)
  const auto stream = static_cast<cudaStream_t>(stream_);
  const auto begin = static_cast<cudaEvent_t>(begin_), end = static_cast<cudaEvent_t>(end_);
  float ms = 0;
  FLASHREL_RETURN_IF_ERROR(cuda_status("cudaEventRecord", cudaEventRecord(begin, stream)));
  FLASHREL_RETURN_IF_ERROR(cuda_status("cudaGraphLaunch", cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph_), stream)));
  FLASHREL_RETURN_IF_ERROR(cuda_status("cudaEventRecord", cudaEventRecord(end, stream)));
  FLASHREL_RETURN_IF_ERROR(cuda_status("cudaEventSynchronize", cudaEventSynchronize(end)));
  FLASHREL_RETURN_IF_ERROR(cuda_status("cudaEventElapsedTime", cudaEventElapsedTime(&ms, begin, end)));
  us.push_back(1e3 * ms / static_cast<double>(placements_.size()));
#endif
  return {};
}

Spread spread_of(std::vector<double> us) {
  if (us.empty()) return {};
  std::sort(us.begin(), us.end());
  const auto at = [&](double part) { return us[static_cast<std::size_t>(part * static_cast<double>(us.size() - 1) + 0.5)]; };
  return {at(0.5), at(0.1), at(0.9), us.size()};
}

}  // namespace flashrel::cli
