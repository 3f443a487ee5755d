#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/include/ckpt/ckpt.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "tools/bench/agent.h"
#include "tools/bench/cases.h"
#include "tools/bench/gpu.h"
#include "tools/bench/gpu_job.h"
#include "tools/bench/gpu_limits.h"
#include "tools/bench/measure.h"
#include "tools/bench/room.h"

namespace ckptd::bench {
namespace {

constexpr uint64_t kStateBytes = kLimitBlocks * kLimitBlockBytes;
constexpr uint64_t kHostDeviceBytes = 192 * kMiB;  // its figures say nothing: they shall come soon
constexpr uint64_t kTensors = 1000;
constexpr uint32_t kGpuRounds = 9;
constexpr uint32_t kBlockedRounds = 30;
constexpr double kAllowedMs = 1;
constexpr double kWorkOfACapture = 2;  // the gate comes when the capture is over, as behind a training step

// Members end in the opposite order: the job before its agent, both before the device.
struct Setup {
  std::unique_ptr<Gpu> gpu;
  std::unique_ptr<Agent> agent;
  std::unique_ptr<GpuJob> job;
  std::unique_ptr<PinnedBlocks> blocks;  // once a job has its region mapped
  std::string no_room = "";

  // Of a figure with a limit.
  [[nodiscard]] std::string Describe(const char* call) const {
    const std::string unpinned = job->pin_error().empty() ? "" : absl::StrCat("; not pinned: ", job->pin_error());
    return absl::StrCat(job->Describe(), "; ", call, " of ", blocks->Describe(), unpinned);
  }

  [[nodiscard]] absl::Status MakeBlocks() {
    CKPTD_ASSIGN_OR_RETURN(blocks, PinnedBlocks::Make(*gpu, agent->region(), job->bytes()));
    return absl::OkStatus();
  }
};

double Rate(uint64_t bytes, double seconds) { return static_cast<double>(bytes) / 1e9 / seconds; }

absl::StatusOr<Setup> Prepare(const Options& options) {
  Setup setup;
  CKPTD_ASSIGN_OR_RETURN(setup.gpu, Gpu::Open());
  CKPTD_ASSIGN_OR_RETURN(GpuRoom room, FindGpuRoom(options, *setup.gpu));
  const uint64_t own = setup.gpu->is_host_device() ? kHostDeviceBytes : kStateBytes;
  const uint64_t bytes = options.bytes != 0 ? options.bytes : std::max<uint64_t>(FittingState(room, own), kMiB);
  setup.no_room = NoGpuRoom(room, bytes);
  if (!setup.no_room.empty()) return setup;
  CKPTD_ASSIGN_OR_RETURN(setup.agent, Agent::Make(options, Storage::kNothing));
  CKPTD_RETURN_IF_ERROR(setup.agent->Start().status());
  const uint64_t tensors = options.tensors != 0 ? options.tensors : kTensors;
  CKPTD_ASSIGN_OR_RETURN(setup.job, GpuJob::Make(*setup.gpu, setup.agent->socket(), bytes, tensors));
  return setup;
}

Lines Skipped(const char* name, const Setup& setup) { return {{name, "", "", {}, setup.no_room, setup.gpu->name()}}; }

absl::StatusOr<Lines> Captures(const char* name, uint32_t path, const Options& options) {
  CKPTD_ASSIGN_OR_RETURN(Setup setup, Prepare(options));
  if (!setup.no_room.empty()) return Skipped(name, setup);
  CKPTD_RETURN_IF_ERROR(setup.job->Start(path));
  CKPTD_RETURN_IF_ERROR(setup.MakeBlocks());
  auto ours = [&]() -> absl::StatusOr<double> {
    CKPTD_ASSIGN_OR_RETURN(double seconds, setup.job->Save());
    return Rate(setup.job->bytes(), seconds);
  };
  auto limit = [&]() -> absl::StatusOr<double> {
    CKPTD_ASSIGN_OR_RETURN(double seconds, setup.blocks->CopyOut());
    return Rate(setup.blocks->bytes(), seconds);
  };
  CKPTD_ASSIGN_OR_RETURN(Comparison found, Alternate(options.RoundsOr(kGpuRounds), ours, limit));
  const std::string what = setup.Describe("cuMemcpyDtoHAsync");
  return Lines{{name, "GB/s", what, found, "", setup.gpu->name()}};
}

// Of one path, `rounds` saves: what the host and what the stream waited, in ms.
absl::Status BlockedOnPath(GpuJob& job, uint32_t path, uint32_t rounds, std::vector<double>* host,
                           std::vector<double>* stream) {
  CKPTD_RETURN_IF_ERROR(job.Start(path));
  double capture = 0;
  CKPTD_RETURN_IF_ERROR(Repeat(2, [&](bool) -> absl::Status {
    CKPTD_ASSIGN_OR_RETURN(capture, job.Save());
    return absl::OkStatus();
  }));
  return Repeat(rounds, [&](bool counts) -> absl::Status {
    CKPTD_ASSIGN_OR_RETURN(Blocked blocked, job.SaveBesideWork(kWorkOfACapture * capture));
    if (!counts) return absl::OkStatus();
    host->push_back(blocked.host_seconds * 1e3);
    stream->push_back(blocked.stream_seconds * 1e3);
    return absl::OkStatus();
  });
}

}  // namespace

absl::StatusOr<Lines> GpuPush(const Options& options) { return Captures("gpu-d2h-push", CKPT_PUSH, options); }

absl::StatusOr<Lines> GpuPull(const Options& options) { return Captures("gpu-d2h-pull", CKPT_PULL, options); }

absl::StatusOr<Lines> GpuBlocked(const Options& options) {
  CKPTD_ASSIGN_OR_RETURN(Setup setup, Prepare(options));
  if (!setup.no_room.empty()) return Skipped("gpu-blocked", setup);
  const uint32_t rounds = options.RoundsOr(kBlockedRounds);
  Lines lines;
  for (auto [path, word] : {std::pair(CKPT_PUSH, "push"), std::pair(CKPT_PULL, "pull")}) {
    std::vector<double> host;
    std::vector<double> stream;
    CKPTD_RETURN_IF_ERROR(BlockedOnPath(*setup.job, path, rounds, &host, &stream));
    const std::string state = setup.job->Describe();
    const Summary allowed = {kAllowedMs, kAllowedMs, kAllowedMs};
    lines.push_back({absl::StrCat("gpu-blocked.", word, ".host"),
                     "ms",
                     absl::StrCat("1 ms in ckpt_save and ckpt_gate_stream, ", state),
                     {Summarize(host), allowed, rounds},
                     "",
                     setup.gpu->name()});
    lines.push_back({absl::StrCat("gpu-blocked.", word, ".stream"),
                     "ms",
                     absl::StrCat("1 ms between events around the gate, behind twice a capture's work, ", state),
                     {Summarize(stream), allowed, rounds},
                     "",
                     setup.gpu->name()});
  }
  return lines;
}

absl::StatusOr<Lines> GpuRestore(const Options& options) {
  CKPTD_ASSIGN_OR_RETURN(Setup setup, Prepare(options));
  if (!setup.no_room.empty()) return Skipped("gpu-restore", setup);
  CKPTD_RETURN_IF_ERROR(setup.job->Start(CKPT_PUSH));
  CKPTD_RETURN_IF_ERROR(setup.job->Save().status());
  CKPTD_RETURN_IF_ERROR(setup.MakeBlocks());
  auto ours = [&]() -> absl::StatusOr<double> {
    CKPTD_ASSIGN_OR_RETURN(double seconds, setup.job->Restore());
    return Rate(setup.job->bytes(), seconds);
  };
  auto limit = [&]() -> absl::StatusOr<double> {
    CKPTD_ASSIGN_OR_RETURN(double seconds, setup.blocks->CopyIn());
    return Rate(setup.blocks->bytes(), seconds);
  };
  CKPTD_ASSIGN_OR_RETURN(Comparison found, Alternate(options.RoundsOr(kGpuRounds), ours, limit));
  const std::string what = setup.Describe("cuMemcpyHtoDAsync");
  return Lines{{"gpu-restore", "GB/s", what, found, "", setup.gpu->name()}};
}

}  // namespace ckptd::bench
