// A job of one rank whose state lies on the GPU, in one allocation as PyTorch's allocator has it: saved and restored
// through libckpt's C ABI. Nothing of it goes onto the disk, if the agent is told so.
#ifndef CKPTD_TOOLS_BENCH_GPU_JOB_H_
#define CKPTD_TOOLS_BENCH_GPU_JOB_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/include/ckpt/ckpt.h"
#include "tools/bench/gpu.h"
#include "tools/bench/measure.h"
#include "tools/bench/session.h"

namespace ckptd::bench {

struct Blocked {
  double host_seconds = 0;    // of the calling thread, inside ckpt_save and ckpt_gate_stream
  double stream_seconds = 0;  // of the stream, between an event before the gate and one behind it
};

// Methods are called by the thread that made the Gpu.
class GpuJob {
 public:
  // Memory with made-up content.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<GpuJob>> Make(const Gpu& gpu, std::string socket, uint64_t bytes,
                                                                    uint64_t tensors);
  GpuJob(const GpuJob&) = delete;
  GpuJob& operator=(const GpuJob&) = delete;
  ~GpuJob();

  // A new attempt on this path (CKPT_PUSH, CKPT_PULL). Returns when the next save would take it.
  [[nodiscard]] absl::Status Start(uint32_t path);
  // Seconds from the call of the save until its copy is complete; returns when it is captured. One that should
  // be pulled and was pushed does not count and is made again; an error where that happens too often.
  [[nodiscard]] absl::StatusOr<double> Save();
  // A save with the gate behind work that the stream has for about `work_seconds`.
  [[nodiscard]] absl::StatusOr<Blocked> SaveBesideWork(double work_seconds);
  // A new attempt that takes the newest snapshot out of the region: seconds from ckpt_restore_begin to the end of
  // ckpt_restore_end. What came is compared with what was saved.
  [[nodiscard]] absl::StatusOr<double> Restore();

  [[nodiscard]] std::string Describe() const;  // "12.0 GiB of state, 0 of 10 saves pulled"
  [[nodiscard]] const std::string& pin_error() const { return pin_error_; }  // of the agent's memory; "" = it is pinned
  [[nodiscard]] uint64_t bytes() const { return tensors_.addresses.size() * tensors_.bytes_each; }

 private:
  GpuJob(const Gpu& gpu, std::string socket) : gpu_(gpu), socket_(std::move(socket)) {}
  [[nodiscard]] absl::Status Allocate(uint64_t bytes, uint64_t tensors);
  [[nodiscard]] absl::Status Fill();
  [[nodiscard]] absl::StatusOr<uint32_t> Digest() const;
  [[nodiscard]] absl::Status Scribble() const;  // over everything
  [[nodiscard]] absl::Status OpenHandle();
  void Close();
  [[nodiscard]] absl::StatusOr<double> ReadNewest(uint32_t* source);
  struct Call {
    TimePoint begin;
    double seconds = 0;  // inside ckpt_save
  };
  [[nodiscard]] absl::StatusOr<Call> StartSave();
  [[nodiscard]] absl::Status AwaitCopied();
  [[nodiscard]] absl::StatusOr<bool> TookItsPath();
  [[nodiscard]] absl::StatusOr<Blocked> TimeBesideWork(double work_seconds);
  [[nodiscard]] absl::Status Work(double seconds) const;  // enqueued on the stream
  [[nodiscard]] absl::Status TimeWork();

  const Gpu& gpu_;
  const std::string socket_;
  Tensors tensors_;
  DeviceStream stream_;
  DeviceAddress state_ = 0;
  DeviceAddress scratch_ = 0;
  void* pinned_ = nullptr;  // for Fill and Digest
  uint64_t scratch_bytes_ = 0;
  double work_seconds_ = 0;  // of one copy of Work
  uint32_t digest_ = 0;
  uint32_t path_ = CKPT_PUSH;
  ckpt* handle_ = nullptr;
  uint64_t step_ = 0;
  uint64_t saves_ = 0;    // of this handle
  uint64_t pulled_ = 0;   // as libckpt counts them
  uint32_t strayed_ = 0;  // of them that took the other path
  std::string pin_error_;
};

}  // namespace ckptd::bench

#endif  // CKPTD_TOOLS_BENCH_GPU_JOB_H_
