#include "tools/bench/gpu_job.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "tools/bench/measure.h"

namespace ckptd::bench {
namespace {

constexpr uint64_t kWindow = 64 * kMiB;
constexpr uint64_t kWorkShare = 8;  // of the state, in one copy of Work: few enough of them for the queue of a stream
constexpr int kWarmWork = 4;
constexpr double kLeastWork = 1e-6;  // seconds: what a clock may not see
// What the attempt before had is given a new file while the next one trains, and is pushed into until the copier has
// mapped that: the save is made again.
constexpr uint32_t kMayStray = 4;
constexpr uint64_t kUnexportNs = 10'000'000'000;

const char* NameOf(uint32_t path) { return path == CKPT_PULL ? "pull" : "push"; }

}  // namespace

absl::StatusOr<std::unique_ptr<GpuJob>> GpuJob::Make(const Gpu& gpu, std::string socket, uint64_t bytes,
                                                     uint64_t tensors) {
  std::unique_ptr<GpuJob> job(new GpuJob(gpu, std::move(socket)));
  CKPTD_RETURN_IF_ERROR(job->Allocate(bytes, tensors));
  CKPTD_RETURN_IF_ERROR(job->Fill());
  CKPTD_ASSIGN_OR_RETURN(job->digest_, job->Digest());
  return job;
}

absl::Status GpuJob::Allocate(uint64_t bytes, uint64_t tensors) {
  const Device& device = gpu_.device();
  const uint64_t count = std::clamp<uint64_t>(bytes / sizeof(uint64_t), 1, tensors);
  tensors_.bytes_each = RoundUp(std::max<uint64_t>(bytes / count, 1), sizeof(uint64_t));
  tensors_.flags = CKPT_DEVICE;
  CKPTD_RETURN_IF_ERROR(StatusOf(device.CreateStream(&stream_)));
  CKPTD_RETURN_IF_ERROR(StatusOf(device.Allocate(count * tensors_.bytes_each, &state_)));
  scratch_bytes_ = std::max<uint64_t>(RoundUp(count * tensors_.bytes_each / kWorkShare, kMiB), kMiB);
  CKPTD_RETURN_IF_ERROR(StatusOf(device.Allocate(scratch_bytes_, &scratch_)));
  CKPTD_RETURN_IF_ERROR(StatusOf(device.AllocatePinned(kWindow, &pinned_)));
  for (uint64_t i = 0; i < count; ++i) {
    tensors_.addresses.push_back(reinterpret_cast<const void*>(state_ + i * tensors_.bytes_each));
  }
  return absl::OkStatus();
}

GpuJob::~GpuJob() {
  Close();
  const Device& device = gpu_.device();
  if (pinned_ != nullptr) (void)device.FreePinned(pinned_);
  for (DeviceAddress address : {scratch_, state_}) {
    if (address != 0) (void)device.Free(address);
  }
  if (stream_.handle != nullptr) (void)device.DestroyStream(stream_);
}

// Without a period: what arrives in another place is other content.
absl::Status GpuJob::Fill() {
  auto* words = static_cast<uint64_t*>(pinned_);
  uint64_t value = 1;
  for (uint64_t at = 0; at < bytes(); at += kWindow) {
    const uint64_t size = std::min(kWindow, bytes() - at);
    for (uint64_t i = 0; i < size / sizeof value; ++i) {
      words[i] = value = value * 6364136223846793005 + 1442695040888963407;
    }
    CKPTD_RETURN_IF_ERROR(StatusOf(gpu_.device().CopyIn(state_ + at, pinned_, size, stream_)));
    CKPTD_RETURN_IF_ERROR(StatusOf(gpu_.device().Synchronize(stream_)));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> GpuJob::Digest() const {
  uint32_t crc = 0;
  for (uint64_t at = 0; at < bytes(); at += kWindow) {
    const uint64_t size = std::min(kWindow, bytes() - at);
    CKPTD_RETURN_IF_ERROR(StatusOf(gpu_.device().CopyOut(pinned_, state_ + at, size, stream_)));
    CKPTD_RETURN_IF_ERROR(StatusOf(gpu_.device().Synchronize(stream_)));
    crc = Crc32c(crc, pinned_, size);
  }
  return crc;
}

absl::Status GpuJob::Scribble() const {
  for (uint64_t at = 0; at < bytes(); at += scratch_bytes_) {
    const uint64_t size = std::min(scratch_bytes_, bytes() - at);
    CKPTD_RETURN_IF_ERROR(StatusOf(gpu_.device().CopyWithin(state_ + at, scratch_, size, stream_)));
  }
  return StatusOf(gpu_.device().Synchronize(stream_));
}

void GpuJob::Close() {
  if (handle_ == nullptr) return;
  (void)ckpt_unexport(handle_, kUnexportNs);  // nobody has the memory open that is freed next
  ckpt_close(std::exchange(handle_, nullptr), 0);
}

absl::Status GpuJob::OpenHandle() {
  Close();
  CKPTD_ASSIGN_OR_RETURN(handle_, Open({.socket = socket_, .gpu_path = path_}));
  saves_ = pulled_ = strayed_ = 0;
  return StatusOf(ckpt_stream(handle_, gpu_.device().ordinal(), stream_.handle));
}

absl::StatusOr<double> GpuJob::ReadNewest(uint32_t* source) {
  ckpt_want want = {sizeof want, CKPT_WANT_NEWEST, 0, kPatienceNs, 0};
  ckpt_restored from = {};
  from.struct_bytes = sizeof from;
  TimePoint begin = Now();
  CKPTD_RETURN_IF_ERROR(StatusOf(ckpt_restore_begin(handle_, &want, &from)));
  if (from.snapshot_attempt != 0) CKPTD_RETURN_IF_ERROR(Read(handle_, from, tensors_));
  *source = from.source;
  step_ = std::max(step_, from.snapshot_step);
  CKPTD_RETURN_IF_ERROR(StatusOf(ckpt_restore_end(handle_, 0, nullptr, &from)));
  return SecondsSince(begin);
}

absl::Status GpuJob::Start(uint32_t path) {
  path_ = path;
  CKPTD_RETURN_IF_ERROR(OpenHandle());
  uint32_t source = 0;
  CKPTD_RETURN_IF_ERROR(ReadNewest(&source).status());
  CKPTD_RETURN_IF_ERROR(Register(handle_, tensors_).status());
  std::string why;
  absl::Status ready = AwaitInfo(handle_, absl::StrCat("a save that would ", NameOf(path)),
                                 [&](const ckpt_info_view& info) -> absl::StatusOr<bool> {
                                   why = info.path_why;
                                   pin_error_ = info.pin_error;
                                   return info.gpu_path == path_;
                                 });
  return ready.ok() ? ready : Error(CodeOf(ready), absl::StrCat(ready.message(), "; ", why));
}

absl::StatusOr<GpuJob::Call> GpuJob::StartSave() {
  Call call;
  CKPTD_RETURN_IF_ERROR(KeepTrying([&] {
    call.begin = Now();
    absl::Status started = StatusOf(ckpt_save(handle_, ++step_, nullptr, 0, tensors_.addresses.data(), 0));
    call.seconds = SecondsSince(call.begin);
    return started;
  }));
  return call;
}

// To the agent it is captured as soon as the copier says so, which the handle learns, and counts, a little later.
absl::Status GpuJob::AwaitCopied() {
  CKPTD_RETURN_IF_ERROR(StatusOf(ckpt_wait(handle_, step_, CKPT_CAPTURED, kPatienceNs)));
  return AwaitInfo(handle_, "the end of a save", [&](const ckpt_info_view&) -> absl::StatusOr<bool> {
    ckpt_step_state state = {};
    state.struct_bytes = sizeof state;
    CKPTD_RETURN_IF_ERROR(StatusOf(ckpt_poll(handle_, step_, &state)));
    return (state.flags & CKPT_COPIED) != 0;
  });
}

absl::StatusOr<bool> GpuJob::TookItsPath() {
  CKPTD_RETURN_IF_ERROR(AwaitCopied());
  ckpt_info_view info = {};
  info.struct_bytes = sizeof info;
  CKPTD_RETURN_IF_ERROR(StatusOf(ckpt_info(handle_, &info)));
  saves_ += 1;
  const bool was_pulled = std::exchange(pulled_, info.pulled) != info.pulled;
  if (was_pulled == (path_ == CKPT_PULL)) return true;
  if (path_ == CKPT_PULL && ++strayed_ <= kMayStray) return false;
  return Error(ErrorCode::INTERNAL, absl::StrCat("a save did not ", NameOf(path_), ": ", info.path_why));
}

absl::StatusOr<double> GpuJob::Save() {
  for (;;) {
    CKPTD_ASSIGN_OR_RETURN(Call call, StartSave());
    CKPTD_RETURN_IF_ERROR(StatusOf(ckpt_gate(handle_, kPatienceNs)));
    double seconds = SecondsSince(call.begin);
    CKPTD_ASSIGN_OR_RETURN(bool counts, TookItsPath());
    if (counts) return seconds;
  }
}

// Copies within the GPU's memory, which use neither the bus nor the host; the state is read, as by a forward pass.
absl::Status GpuJob::Work(double seconds) const {
  const auto copies = static_cast<uint64_t>(std::ceil(seconds / work_seconds_));
  for (uint64_t i = 0; i < copies; ++i) {
    const uint64_t size = std::min(scratch_bytes_, bytes());
    CKPTD_RETURN_IF_ERROR(StatusOf(gpu_.device().CopyWithin(scratch_, state_, size, stream_)));
  }
  return absl::OkStatus();
}

absl::Status GpuJob::TimeWork() {
  work_seconds_ = 1;  // one copy for each second asked for
  CKPTD_RETURN_IF_ERROR(Work(kWarmWork));
  CKPTD_RETURN_IF_ERROR(gpu_.MarkBegin(stream_));
  CKPTD_RETURN_IF_ERROR(Work(kWarmWork));
  CKPTD_RETURN_IF_ERROR(gpu_.MarkEnd(stream_));
  CKPTD_RETURN_IF_ERROR(StatusOf(gpu_.device().Synchronize(stream_)));
  CKPTD_ASSIGN_OR_RETURN(double seconds, gpu_.Seconds());
  work_seconds_ = std::max(seconds / kWarmWork, kLeastWork);
  return absl::OkStatus();
}

absl::StatusOr<Blocked> GpuJob::SaveBesideWork(double work_seconds) {
  if (work_seconds_ == 0) CKPTD_RETURN_IF_ERROR(TimeWork());
  for (;;) {
    CKPTD_ASSIGN_OR_RETURN(Blocked blocked, TimeBesideWork(work_seconds));
    CKPTD_ASSIGN_OR_RETURN(bool counts, TookItsPath());
    if (counts) return blocked;
  }
}

absl::StatusOr<Blocked> GpuJob::TimeBesideWork(double work_seconds) {
  CKPTD_ASSIGN_OR_RETURN(Call call, StartSave());
  CKPTD_RETURN_IF_ERROR(Work(work_seconds));
  CKPTD_RETURN_IF_ERROR(gpu_.MarkBegin(stream_));
  TimePoint gating = Now();
  CKPTD_RETURN_IF_ERROR(StatusOf(ckpt_gate_stream(handle_, stream_.handle, kPatienceNs)));
  double gated = SecondsSince(gating);
  CKPTD_RETURN_IF_ERROR(gpu_.MarkEnd(stream_));
  CKPTD_RETURN_IF_ERROR(StatusOf(gpu_.device().Synchronize(stream_)));
  CKPTD_ASSIGN_OR_RETURN(double held, gpu_.Seconds());
  return Blocked{call.seconds + gated, held};
}

std::string GpuJob::Describe() const {
  std::string state = FormatBytes(bytes()) + " of state";
  if (saves_ == 0) return state;
  return absl::StrCat(state, ", ", pulled_, " of ", saves_, " saves pulled");
}

absl::StatusOr<double> GpuJob::Restore() {
  CKPTD_RETURN_IF_ERROR(Scribble());
  CKPTD_RETURN_IF_ERROR(OpenHandle());
  uint32_t source = 0;
  CKPTD_ASSIGN_OR_RETURN(double seconds, ReadNewest(&source));
  if (source != kFromRegion) {
    return Error(ErrorCode::INTERNAL, absl::StrCat("restored from source ", source, " instead of ", kFromRegion));
  }
  CKPTD_ASSIGN_OR_RETURN(uint32_t digest, Digest());
  if (digest != digest_) return Error(ErrorCode::CORRUPT, "what was restored is not what was saved");
  return seconds;
}

}  // namespace ckptd::bench
