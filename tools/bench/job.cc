#include "tools/bench/job.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "daemon/os/files.h"

namespace ckptd::bench {
namespace {

struct Free {
  void operator()(std::byte* memory) const { free(memory); }
};

}  // namespace

struct Job::Member {
  Member(uint64_t bytes, uint32_t rank)
      : memory(static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, bytes))), size(bytes) {
    if (memory == nullptr) throw std::bad_alloc();
    auto* words = reinterpret_cast<uint64_t*>(memory.get());
    uint64_t value = rank + 1;
    for (uint64_t i = 0; i < bytes / sizeof value; ++i)
      words[i] = value = value * 6364136223846793005 + 1442695040888963407;
    crc = Crc32c(0, memory.get(), bytes);
  }

  std::unique_ptr<std::byte, Free> memory;
  uint64_t size;
  uint32_t crc;  // of the state, which never changes
  ckpt* handle = nullptr;
  Tensors tensors;
};

Job::Job(const std::string& socket, uint32_t ranks, uint64_t bytes, uint64_t tensors, uint8_t flags)
    : Job(std::vector<std::string>(ranks, socket), bytes, tensors, flags) {}

Job::Job(std::vector<std::string> sockets, uint64_t bytes, uint64_t tensors, uint8_t flags)
    : sockets_(std::move(sockets)),
      tensors_(std::clamp<uint64_t>(bytes / sizeof(uint64_t), 1, tensors)),
      tensor_bytes_(RoundUp(std::max<uint64_t>(bytes / tensors_, 1), sizeof(uint64_t))) {
  uint64_t size = RoundUp(tensors_ * tensor_bytes_, kDirectAlignment);
  for (uint32_t rank = 0; rank < sockets_.size(); ++rank) {
    members_.push_back(std::make_unique<Member>(size, rank));
    Member& member = *members_.back();
    for (uint64_t i = 0; i < tensors_; ++i) member.tensors.addresses.push_back(member.memory.get() + i * tensor_bytes_);
    member.tensors.bytes_each = tensor_bytes_;
    member.tensors.flags = flags;
  }
}

Job::~Job() { Close(); }

void Job::Close() {
  for (auto& member : members_) {
    if (ckpt* handle = std::exchange(member->handle, nullptr)) ckpt_close(handle, 0);
  }
}

uint64_t Job::total_bytes() const { return members_.size() * tensors_ * tensor_bytes_; }

std::span<std::byte> Job::state(uint32_t rank) const { return {members_[rank]->memory.get(), members_[rank]->size}; }

absl::Status Job::ForEachRank(const std::function<absl::Status(uint32_t)>& body) const {
  std::vector<absl::Status> results(members_.size());
  std::vector<std::thread> threads;
  for (uint32_t rank = 1; rank < members_.size(); ++rank) {
    threads.emplace_back([&, rank] { results[rank] = body(rank); });
  }
  results[0] = body(0);
  for (std::thread& thread : threads) thread.join();
  for (absl::Status& result : results) CKPTD_RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

absl::Status Job::OpenAll() {
  Close();
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    CKPTD_ASSIGN_OR_RETURN(members_[rank]->handle, Open({sockets_[rank], rank, ranks()}));
  }
  return absl::OkStatus();
}

absl::Status Job::Begin(uint32_t rank, ckpt_restored* from) {
  ckpt_want want = {sizeof want, CKPT_WANT_NEWEST, 0, kPatienceNs, 0};
  *from = {};
  from->struct_bytes = sizeof *from;
  CKPTD_RETURN_IF_ERROR(StatusOf(ckpt_restore_begin(members_[rank]->handle, &want, from)));
  if (rank == 0) step_ = std::max(step_, from->snapshot_step);
  return absl::OkStatus();
}

absl::StatusOr<double> Job::Restore(uint32_t* source) {
  CKPTD_RETURN_IF_ERROR(OpenAll());
  std::vector<uint32_t> sources(members_.size());
  TimePoint begin = Now();
  CKPTD_RETURN_IF_ERROR(ForEachRank([&](uint32_t rank) { return RestoreRank(rank, &sources[rank]); }));
  double seconds = SecondsSince(begin);
  for (const auto& member : members_) {
    bool same = Crc32c(0, member->memory.get(), member->size) == member->crc;
    if (!same) return Error(ErrorCode::CORRUPT, "what was restored is not what was saved");
  }
  if (source != nullptr) *source = sources.back();
  return seconds;
}

absl::Status Job::RestoreRank(uint32_t rank, uint32_t* source) {
  Member& member = *members_[rank];
  ckpt_restored from = {};
  CKPTD_RETURN_IF_ERROR(Begin(rank, &from));
  absl::Status read = from.snapshot_attempt != 0 ? ReadRank(member, from) : absl::OkStatus();
  CKPTD_RETURN_IF_ERROR(read);
  *source = from.source;
  return StatusOf(ckpt_restore_end(member.handle, 0, nullptr, &from));
}

absl::StatusOr<double> Job::Map() {
  CKPTD_RETURN_IF_ERROR(OpenAll());
  std::vector<double> seconds(members_.size());
  CKPTD_RETURN_IF_ERROR(ForEachRank([&](uint32_t rank) { return MapRank(rank, &seconds[rank]); }));
  return *std::max_element(seconds.begin(), seconds.end());
}

absl::Status Job::MapRank(uint32_t rank, double* seconds) {
  Member& member = *members_[rank];
  ckpt_restored from = {};
  CKPTD_RETURN_IF_ERROR(Begin(rank, &from));
  if (from.source != kFromRegion) return Error(ErrorCode::INTERNAL, "what is mapped was not in memory");
  const void* slot = nullptr;
  uint64_t slot_bytes = 0;
  TimePoint begin = Now();
  CKPTD_RETURN_IF_ERROR(StatusOf(ckpt_restore_map(member.handle, &slot, &slot_bytes)));
  *seconds = SecondsSince(begin);
  const char* json = nullptr;
  uint64_t json_bytes = 0;
  uint64_t at = 0;
  CKPTD_RETURN_IF_ERROR(StatusOf(ckpt_restore_header(member.handle, 0, &json, &json_bytes, &at)));
  const uint64_t bytes = tensors_ * tensor_bytes_;
  const bool same =
      slot_bytes >= at + bytes && memcmp(static_cast<const char*>(slot) + at, member.memory.get(), bytes) == 0;
  if (!same) return Error(ErrorCode::CORRUPT, "what was mapped is not what was saved");
  return StatusOf(ckpt_restore_end(member.handle, 0, nullptr, &from));
}

absl::Status Job::ReadRank(Member& member, const ckpt_restored& from) const {
  for (const void* address : member.tensors.addresses) {
    memset(const_cast<void*>(address), 0, sizeof(uint64_t));  // what is compared afterwards was read
  }
  return Read(member.handle, from, member.tensors);
}

absl::StatusOr<Registered> Job::Register() {
  std::vector<Registered> registered(members_.size());
  CKPTD_RETURN_IF_ERROR(ForEachRank([&](uint32_t rank) -> absl::Status {
    CKPTD_ASSIGN_OR_RETURN(registered[rank], bench::Register(members_[rank]->handle, members_[rank]->tensors));
    return absl::OkStatus();
  }));
  Registered slowest;
  for (const Registered& one : registered) {
    slowest.call_seconds = std::max(slowest.call_seconds, one.call_seconds);
    slowest.ready_seconds = std::max(slowest.ready_seconds, one.ready_seconds);
  }
  return slowest;
}

absl::StatusOr<Saved> Job::Save() {
  Saved saved;
  CKPTD_RETURN_IF_ERROR(KeepTrying([&] { return TrySave(&saved); }));
  return saved;
}

absl::Status Job::TrySave(Saved* saved) {
  std::vector<double> blocked(members_.size());
  saved->step = ++step_;
  saved->begin = Now();
  absl::Status result = ForEachRank([&](uint32_t rank) {
    Member& member = *members_[rank];
    TimePoint begin = Now();
    absl::Status started = StatusOf(ckpt_save(member.handle, step_, nullptr, 0, member.tensors.addresses.data(), 0));
    blocked[rank] = SecondsSince(begin);
    absl::Status passed = StatusOf(ckpt_gate(member.handle, kPatienceNs));
    return started.ok() ? passed : started;
  });
  saved->copied_seconds = SecondsSince(saved->begin);
  saved->blocked_seconds = *std::max_element(blocked.begin(), blocked.end());
  return result;
}

absl::Status Job::Await(uint64_t step, uint32_t level) {
  return ForEachRank(
      [&](uint32_t rank) { return StatusOf(ckpt_wait(members_[rank]->handle, step, level, kPatienceNs)); });
}

absl::Status Job::Warm(uint32_t level) {
  CKPTD_ASSIGN_OR_RETURN([[maybe_unused]] double seconds, Restore(nullptr));
  CKPTD_RETURN_IF_ERROR(Register().status());
  CKPTD_ASSIGN_OR_RETURN(Saved saved, Save());
  return Await(saved.step, level);
}

}  // namespace ckptd::bench
