// Feeds what trainers send over time: a sequence of frames, each a packet of one connection or something that happens
// to it. Packets are decoded (daemon/session/requests.h) and passed on to the bookkeeping of the session as the agent
// does it: claims, copiers, rescues and turns at pinning; and, of rank 0 of job gpt, to the machine of its slots, with
// what bells and coordinator say in between (slots.h).
//
//   byte 0   low 3 bits: what happens, see On; then 3 bits: the connection, of which two belong to a process
//   packet   u16 length, then the bytes
//
// What is decoded is within the limits of the protocol and its text is UTF-8 without control characters; a cut packet
// is refused and a longer one means the same. No rank has two holders, no dead process holds anything, and each is
// reaped once, when its last copier has ended.
#include <algorithm>
#include <map>
#include <set>

#include "client/core/image/text.h"
#include "daemon/session/claims.h"
#include "daemon/session/copiers.h"
#include "daemon/session/pin_turns.h"
#include "daemon/session/requests.h"
#include "daemon/session/rescues.h"
#include "proto/local/rescue.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/slots.h"

namespace ckptd::fuzz {

const Allowed kAllowed = {128 << 10, 128};

namespace {

constexpr uint32_t kSessions = 8;
constexpr size_t kMostFrames = 200;
constexpr Nanos kWeek = std::chrono::hours(24 * 7);

void CheckText(const std::string& text) {
  FUZZ_CHECK(ValidUtf8Prefix(text) == text.size());
  for (char c : text) FUZZ_CHECK(static_cast<unsigned char>(c) >= ' ' && c != 0x7f);
}

void Check(const HelloRequest& hello) {
  FUZZ_CHECK(hello.min_major <= hello.max_major);
  CheckText(hello.library);
}
void Check(const JoinRequest& join) {
  FUZZ_CHECK(CheckJobName(join.job).ok() && join.rank < join.world && join.world <= kMaxRanks && join.ticket != 0);
  FUZZ_CHECK(join.timeout >= Nanos(0) && join.timeout <= kWeek && join.want <= Want::kFresh);
}
void Check(const ResumeRequest& resume) {
  FUZZ_CHECK(CheckJobName(resume.job).ok() && resume.rank < resume.world && resume.world <= kMaxRanks);
  FUZZ_CHECK(resume.ticket != 0);
}
void Check(const LoadedRequest& loaded) {
  FUZZ_CHECK(InfoOf(loaded.code).code == loaded.code);
  CheckText(loaded.reason);
}
void Check(const LoadingRequest& /*loading*/) {}
void Check(const LayoutRequest& layout) { FUZZ_CHECK(layout.image_count > 0 && layout.image_count <= kMaxImages); }
void Check(const CaptureRequest& capture) { FUZZ_CHECK(capture.slot < kMaxSlots && capture.epoch <= kMaxEpoch); }
void Check(const ByeRequest& /*bye*/) {}
void Check(const CopierRequest& copier) { CheckText(ToString(copier.gpu)); }
void Check(const DevicesRequest& devices) {
  FUZZ_CHECK(devices.gpus.size() <= kMaxDevices && devices.pin_time >= Nanos(0) && devices.pin_time <= kWeek);
  FUZZ_CHECK(devices.longest_step >= Nanos(0) && devices.longest_step <= kWeek);
  CheckText(devices.pin_error);
  for (const GpuReport& gpu : devices.gpus) CheckText(gpu.why);
}
void Check(const RescueRequest& rescue) {
  FUZZ_CHECK(rescue.hold >= Nanos(0) && rescue.hold <= Nanos(kMostHoldNs));
  CheckText(rescue.why);
}

// The same packet, a byte shorter than its head says and, of a newer peer, one longer.
void CheckLengths(Input packet) {
  FUZZ_CHECK(!Decode(std::as_bytes(packet.first(packet.size() - 1))).ok());
  std::vector<uint8_t> longer(packet.begin(), packet.end());
  longer.push_back(0xff);
  const auto size = static_cast<uint32_t>(longer.size());
  std::memcpy(longer.data() + offsetof(MessageHead, size), &size, sizeof(size));
  FUZZ_CHECK(Decode(std::as_bytes(std::span(longer))).ok());
}

class World {
 public:
  void Frame(Reader& in) {
    const auto first = in.Take<uint8_t>();
    const uint32_t session = first >> 3 & (kSessions - 1);
    On(first & 7, session, in);
    Settle();
    CheckClaims();
  }

 private:
  struct Connection {
    bool greeted = false;
    std::string job;  // "" = not bound
    Rank rank = 0;
    Ticket ticket = 0;
  };

  // A number that died is used again by a process that started later.
  [[nodiscard]] ProcessId ProcessOf(uint32_t session) const {
    return {static_cast<pid_t>(100 + session / 2), generation_[session / 2]};
  }
  [[nodiscard]] uint64_t Number(uint32_t session) const { return session / 2 * 1000 + generation_[session / 2]; }
  [[nodiscard]] SessionId IdOf(uint32_t session) const { return session + 1 + kSessions * Number(session); }

  void On(int what, uint32_t session, Reader& in) {
    switch (what) {
      case 1:
        return Disconnect(session);
      case 2:
        return Die(session, in.Take<uint8_t>() % 4 == 0);
      case 3:
        now_ += std::chrono::milliseconds(in.Take<uint16_t>());
        for (const ProcessId& overdue : rescues_.TakeOverdue(now_)) FUZZ_CHECK(dead_.contains(overdue));
        FUZZ_CHECK(!rescues_.deadline() || *rescues_.deadline() > now_);
        (void)turns_.Next(now_);
        return;
      case 4:
        return EndCopier(in.Take<uint8_t>());
      case 5:
        if (!copiers_running_.empty()) copiers_.GiveUp(*copiers_running_.begin());
        return slots_.Answer(in.Take<uint8_t>() % 4 != 0);
      case 6:
        return slots_.Bell(Number(session), in);
      case 7:
        return slots_.Coordinator(in);
      default:
        return Packet(session, in.Bytes(in.Take<uint16_t>()));
    }
  }

  void Packet(uint32_t session, Input packet) {
    auto request = Decode(std::as_bytes(packet));
    if (!request.ok()) return;
    CheckLengths(packet);
    std::visit([](const auto& typed) { Check(typed); }, *request);
    Connection& connection = connections_[session];
    if (std::holds_alternative<HelloRequest>(*request)) connection.greeted = true;
    if (connection.greeted) std::visit([&](const auto& typed) { Do(session, connection, typed); }, *request);
  }

  bool Bind(uint32_t session, Connection& connection, const std::string& job, Rank rank, Ticket ticket) {
    const ProcessId process = ProcessOf(session);
    const Holder holder{static_cast<uint32_t>(process.pid), process.start_time, session / 4, ticket, IdOf(session)};
    const auto before = claims_.Find(job, rank);
    const bool taken = claims_.Claim(job, rank, holder).ok();
    FUZZ_CHECK(!taken || !before || (before->pid == holder.pid && before->start_time == holder.start_time));
    if (!taken) return false;
    connection.job = job;
    connection.rank = rank;
    connection.ticket = ticket;
    held_.insert({job, rank});
    FUZZ_CHECK(claims_.SessionOf(job, rank, ticket) == IdOf(session));
    return true;
  }

  static bool HasSlots(const Connection& connection) { return connection.job == "gpt" && connection.rank == 0; }

  void Do(uint32_t session, Connection& connection, const JoinRequest& join) {
    if (rescues_.Delays(join.job) || !Bind(session, connection, join.job, join.rank, join.ticket)) return;
    if (HasSlots(connection)) slots_.Join(Number(session), join.ticket);
  }
  void Do(uint32_t session, Connection& connection, const ResumeRequest& resume) {
    if (!Bind(session, connection, resume.job, resume.rank, resume.ticket) || !HasSlots(connection)) return;
    slots_.Resume(Number(session), resume);
  }
  void Do(uint32_t /*session*/, Connection& connection, const LoadedRequest& loaded) {
    if (HasSlots(connection)) slots_.Loaded(loaded);
  }
  void Do(uint32_t /*session*/, Connection& connection, const LoadingRequest& loading) {
    if (HasSlots(connection)) slots_.Loading(loading);
  }
  void Do(uint32_t session, Connection& connection, const LayoutRequest& /*layout*/) {
    if (connection.job.empty()) return;
    if (HasSlots(connection)) slots_.Layout(Number(session));
    (void)turns_.Ask({Number(session), connection.job, connection.rank});
    (void)turns_.Next(now_);
  }
  void Do(uint32_t session, Connection& connection, const DevicesRequest& /*devices*/) {
    turns_.EndTurn({Number(session), connection.job, connection.rank});
  }
  void Do(uint32_t session, Connection& connection, const CopierRequest& copier) {
    const ProcessId process = ProcessOf(session);
    if (connection.job.empty() || !copiers_.MayStart(process, copier.gpu, now_).ok()) return;
    const Copiers::CopierId id = ++last_copier_;
    (void)copiers_.Started(process, copier.gpu, id, now_);
    copiers_running_.insert(id);
    owner_[id] = process;
    FUZZ_CHECK(copiers_.Find(process, copier.gpu) == id);
  }
  void Do(uint32_t session, Connection& /*connection*/, const RescueRequest& rescue) {
    rescues_.Tell(ProcessOf(session), {rescue.hold, rescue.why});
  }
  void Do(uint32_t session, Connection& connection, const ByeRequest& /*bye*/) {
    if (!connection.job.empty()) (void)claims_.Release(connection.job, connection.rank, connection.ticket);
    if (HasSlots(connection)) slots_.Bye(connection.ticket);
    turns_.Leave({Number(session), connection.job, connection.rank});
    connection.job.clear();
    const ProcessId process = ProcessOf(session);
    if (claims_.HoldsAny(static_cast<uint32_t>(process.pid), process.start_time)) return;
    (void)copiers_.Release(process);
    rescues_.Forget(process);
    FUZZ_CHECK(!copiers_.HasAny(process));
  }
  template <typename Other>
  void Do(uint32_t /*session*/, Connection& /*connection*/, const Other& /*request*/) {}

  void Disconnect(uint32_t session) {
    claims_.Disconnect(IdOf(session));
    connections_[session] = {};
  }

  void Die(uint32_t session, bool gpu_error) {
    const ProcessId process = ProcessOf(session);
    std::set<std::string> jobs;
    for (const auto& [job, rank] : claims_.EndProcess(static_cast<uint32_t>(process.pid), process.start_time))
      jobs.insert(job);
    turns_.ProcessEnded(Number(session));
    dead_.insert(process);
    slots_.Died(Number(session));
    (void)copiers_.ProcessDied(process);
    if (rescues_.Begin(process, jobs, gpu_error, now_))
      FUZZ_CHECK(rescues_.FindRescue(process)->deadline - now_ <= Nanos(kMostHoldNs));
    Disconnect(session);
    Disconnect(session ^ 1);
    ++generation_[session / 2];
  }

  void EndCopier(uint8_t which) {
    if (copiers_running_.empty()) return;
    const auto ended = std::next(copiers_running_.begin(), which % static_cast<int>(copiers_running_.size()));
    (void)copiers_.Ended(*ended, now_);
    owner_.erase(*ended);
    copiers_running_.erase(ended);
  }

  void Settle() {
    for (const ProcessId& process : copiers_.TakeReaped()) {
      FUZZ_CHECK(dead_.erase(process) == 1);
      slots_.Reaped(static_cast<uint64_t>(process.pid - 100) * 1000 + process.start_time);
      for (const auto& [copier, owner] : owner_) FUZZ_CHECK(owner != process);
      (void)rescues_.End(process);
      FUZZ_CHECK(rescues_.Of(process) == Rescues::Standing::kLives);
    }
    for (const ProcessId& process : dead_) {
      FUZZ_CHECK(std::any_of(owner_.begin(), owner_.end(), [&](const auto& each) { return each.second == process; }));
      FUZZ_CHECK(rescues_.Of(process) != Rescues::Standing::kLives);
    }
    FUZZ_CHECK(copiers_.running() == owner_.size());
  }

  void CheckClaims() const {
    for (const auto& [job, rank] : held_) {
      const auto holder = claims_.Find(job, rank);
      if (!holder) continue;
      FUZZ_CHECK(holder->start_time == generation_[holder->pid - 100]);
      FUZZ_CHECK(claims_.Holds(job));
    }
  }

  Claims claims_;
  Copiers copiers_;
  Rescues rescues_;
  PinTurns turns_;
  Slots slots_;
  Nanos now_ = std::chrono::seconds(100);
  uint64_t generation_[kSessions / 2] = {1, 1, 1, 1};
  Connection connections_[kSessions];
  std::set<std::pair<std::string, Rank>> held_;  // at some time
  std::set<ProcessId> dead_;                     // not reaped yet
  Copiers::CopierId last_copier_ = 0;
  std::set<Copiers::CopierId> copiers_running_;
  std::map<Copiers::CopierId, ProcessId> owner_;
};

}  // namespace

void Run(Input input) {
  Reader in(input);
  World world;
  for (size_t i = 0; i < kMostFrames && !in.done(); ++i) world.Frame(in);
}

// Magic and length of each packet.
void Repair(std::vector<uint8_t>& input) {
  constexpr uint8_t kArguments[6] = {2, 0, 1, 2, 1, 1};  // bytes behind the first of a frame
  for (size_t at = 0; at < input.size();) {
    const int what = input[at] & 7;
    if (what > 5) return;  // as long as what it says
    const size_t begin = at + 1 + kArguments[what];
    uint16_t size = 0;
    if (what == 0 && begin <= input.size()) std::memcpy(&size, input.data() + at + 1, sizeof(size));
    if (size >= sizeof(MessageHead) && begin + size <= input.size()) {
      const uint32_t length = size;
      std::memcpy(input.data() + begin + offsetof(MessageHead, magic), &kMessageMagic, sizeof(kMessageMagic));
      std::memcpy(input.data() + begin + offsetof(MessageHead, size), &length, sizeof(length));
    }
    at = begin + size;
  }
}

}  // namespace ckptd::fuzz
