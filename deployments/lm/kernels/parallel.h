// Chunks of one kernel call shared between XLA's threads. The caller works too and never waits for a thread that has
// not begun: on a busy machine it does all chunks itself.
#pragma once

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "xla/ffi/api/ffi.h"

namespace outrider {

template <typename Work>
class Job {
 public:
  Job(Work work, int64_t chunks) : work_(std::move(work)), chunks_(chunks) {}

  // Takes chunks until none are left. A late thread finds none and touches nothing of the call.
  void help() {
    for (int64_t chunk = next_.fetch_add(1, std::memory_order_relaxed); chunk < chunks_;
         chunk = next_.fetch_add(1, std::memory_order_relaxed)) {
      work_(chunk);
      done_.fetch_add(1, std::memory_order_release);
    }
  }

  // Others only finish what they have begun, so this is short unless one of them lost its core.
  void wait() const {
    for (int spins = 0; done_.load(std::memory_order_acquire) < chunks_; ++spins) {
      if (spins < 4096) {
        _mm_pause();
      } else {
        sched_yield();
      }
    }
  }

 private:
  Work work_;
  const int64_t chunks_;
  std::atomic<int64_t> next_{0};
  std::atomic<int64_t> done_{0};
};

// Calls `work(chunk)` once for each of `chunks` chunks and returns when all are done.
template <typename Work>
void parallel(xla::ffi::ThreadPool& pool, int64_t chunks, Work work) {
  const int64_t threads = std::min(pool.num_threads(), chunks);
  if (threads <= 1) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) work(chunk);
    return;
  }
  auto job = std::make_shared<Job<Work>>(std::move(work), chunks);
  for (int64_t thread = 1; thread < threads; ++thread) pool.Schedule([job] { job->help(); });
  job->help();
  job->wait();
}

// The lanes of a vector of 16 that hold something when `left` values are left.
inline __mmask16 lanes(int64_t left) {
  return static_cast<__mmask16>((1u << std::clamp<int64_t>(left, 0, 16)) - 1);
}

}  // namespace outrider
