// Chunks of one kernel call shared between threads. A window makes a hundred calls of some ten microseconds each, so
// helpers stay awake between them: waking a sleeping thread takes longer than its share of a call. They go to sleep
// when no call has come for a while. The caller works too and never waits for a helper that has not begun: on a busy
// machine it does all chunks itself.
#pragma once

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace outrider {

class Job {
 public:
  Job(const void* work, void (*call)(const void*, int64_t), int64_t chunks) : work_(work), call_(call), chunks_(chunks) {}

  void take_chunks() {
    for (int64_t chunk = next_.fetch_add(1, std::memory_order_relaxed); chunk < chunks_;
         chunk = next_.fetch_add(1, std::memory_order_relaxed)) {
      call_(work_, chunk);
    }
  }

  // A helper's last word about this job, which may be gone at once.
  void leave() { left_.fetch_add(1, std::memory_order_release); }

  // Helpers only finish what they have begun, so this is short unless one of them lost its core.
  void wait_for(int64_t helpers) const {
    for (int spins = 0; left_.load(std::memory_order_acquire) < helpers; ++spins) {
      if (spins < 4096) {
        _mm_pause();
      } else {
        sched_yield();
      }
    }
  }

 private:
  const void* work_;
  void (*call_)(const void*, int64_t);
  const int64_t chunks_;
  std::atomic<int64_t> next_{0};
  std::atomic<int64_t> left_{0};
};

// One thread and the job it should help with next.
class Helper {
 public:
  // Says whether it is free; a helper that another call keeps busy is left alone.
  bool offer(Job* job) {
    Job* none = nullptr;
    if (!job_.compare_exchange_strong(none, job, std::memory_order_acq_rel)) return false;
    job_.notify_one();
    return true;
  }

  // Says whether the job was still there, and so nobody works on it.
  bool withdraw(Job* job) { return job_.compare_exchange_strong(job, nullptr, std::memory_order_acq_rel); }

  void run() {
    for (;;) {
      // Some hundred microseconds: longer than anything between two calls of a window.
      for (int spins = 0; spins < 8192 && job_.load(std::memory_order_relaxed) == nullptr; ++spins) _mm_pause();
      job_.wait(nullptr, std::memory_order_acquire);
      Job* job = job_.exchange(nullptr, std::memory_order_acq_rel);
      if (job == nullptr) continue;
      job->take_chunks();
      job->leave();
    }
  }

 private:
  alignas(64) std::atomic<Job*> job_{nullptr};
};

// More would wait for memory, not work.
constexpr int64_t kMostThreads = 16;

// All helpers of the process. They live as long as it does, so nothing is ever torn down under a running call.
inline std::vector<Helper*>& crew(int64_t threads) {
  static std::vector<Helper*>& helpers = *[threads] {
    auto* made = new std::vector<Helper*>;
    for (int64_t thread = 1; thread < std::min(threads, kMostThreads); ++thread) {
      made->push_back(new Helper);
      std::thread(&Helper::run, made->back()).detach();
    }
    return made;
  }();
  return helpers;
}

// Calls `work(chunk)` once for each of `chunks` chunks and returns when all are done.
template <typename Work>
void parallel(xla::ffi::ThreadPool& pool, int64_t chunks, const Work& work) {
  Job job(
      &work, [](const void* what, int64_t chunk) { (*static_cast<const Work*>(what))(chunk); }, chunks);
  int64_t working = 0;
  std::vector<Helper*>& helpers = crew(pool.num_threads());
  const int64_t useful = std::min<int64_t>(chunks - 1, static_cast<int64_t>(helpers.size()));
  uint32_t offered = 0;
  for (int64_t i = 0; i < useful; ++i)
    if (helpers[i]->offer(&job)) offered |= 1u << i;
  job.take_chunks();
  for (int64_t i = 0; i < useful; ++i)
    if ((offered >> i & 1) && !helpers[i]->withdraw(&job)) ++working;
  job.wait_for(working);
}

// The lanes of a vector of 16 that hold something when `left` values are left.
inline __mmask16 lanes(int64_t left) {
  return static_cast<__mmask16>((1u << std::clamp<int64_t>(left, 0, 16)) - 1);
}

}  // namespace outrider
