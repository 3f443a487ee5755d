#include "daemon/region/scan.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/region/ctl_file.h"
#include "daemon/region/job_journal.h"
#include "daemon/region/slot_file.h"
#include "proto/local/bell.h"
#include "proto/local/messages.h"

namespace ckptd::region {
namespace {

constexpr size_t kMaxEntries = 1u << 16;
constexpr uint64_t kMostPids = 1u << 22;
constexpr size_t kMaxJournalBytes = 4096;

// Grant and SlotState as plain numbers: atomics cannot be copied.
struct PlainGrant {
  uint64_t word, floor, attempt, parent_attempt, parent_step, reserved[3];
};
struct PlainSlotState {
  uint64_t word, flags, file_id, owner_ticket, owner_attempt, owner_pid, owner_start, reserved;
};
static_assert(sizeof(PlainGrant) == sizeof(Grant) && sizeof(PlainSlotState) == sizeof(SlotState));

std::span<const std::byte> BytesOf(const std::string& text) { return std::as_bytes(std::span(text)); }

template <typename T>
T CopyAt(std::span<const std::byte> file, uint64_t offset) {
  T value;
  std::memcpy(&value, file.data() + offset, sizeof(value));
  return value;
}

bool IsNewer(const absl::Status& status) { return CodeOf(status) == ErrorCode::NEWER_VERSION; }

// Of an attempt to read a file: it could not be read (no descriptor, no memory, I/O). It may be whole, and nothing may
// be removed for it, unlike for one that is gone, too large, or whose content is wrong.
bool IsUnread(const absl::Status& status) {
  const ErrorCode code = CodeOf(status);
  return !status.ok() && code != ErrorCode::CORRUPT && code != ErrorCode::REFUSED && code != ErrorCode::NOT_FOUND;
}

// One rank's directory.
class RankScan {
 public:
  // `parity`: each record is followed by what its slot's parity was made of.
  RankScan(Files& files, const ScannedJob& job, uint64_t region_id, bool parity, ScannedRank& out)
      : files_(files), job_(job), region_id_(region_id), parity_(parity), out_(out) {}

  absl::Status Run() {
    CKPTD_ASSIGN_OR_RETURN(std::vector<DirEntry> entries, files_.ReadDir(out_.dir, kMaxEntries));
    for (const DirEntry& entry : entries) Sort(entry);
    for (const std::string& name : ctl_names_) CKPTD_RETURN_IF_ERROR(AddLayout(name));
    if (out_.newer) return LeaveAlone();
    for (const std::string& name : slot_names_)
      if (!claimed_.contains(name)) out_.debris.push_back(PathOf(name));
    return absl::OkStatus();
  }

 private:
  std::string PathOf(absl::string_view name) const { return absl::StrCat(out_.dir, "/", name); }

  void Sort(const DirEntry& entry) {
    if (entry.type == FileType::kRegular && absl::StartsWith(entry.name, "ctl."))
      ctl_names_.push_back(entry.name);
    else if (entry.type == FileType::kRegular && absl::StartsWith(entry.name, "slot-"))
      slot_names_.insert(entry.name);
    else if (entry.type == FileType::kRegular && absl::StartsWith(entry.name, kTemporaryPrefix))
      out_.debris.push_back(PathOf(entry.name));
    else
      out_.problems.push_back(absl::StrCat(PathOf(entry.name), ": not a name of ours, left alone"));
  }

  absl::Status LeaveAlone() {
    out_.layouts.clear();
    out_.debris.clear();
    return absl::OkStatus();
  }

  absl::Status AddLayout(const std::string& name) {
    absl::StatusOr<ScannedLayout> layout = ReadLayout(name);
    if (layout.ok()) {
      out_.layouts.push_back(*std::move(layout));
      return absl::OkStatus();
    }
    CKPTD_RETURN_IF_ERROR(unread_);
    out_.problems.push_back(absl::StrCat(PathOf(name), ": ", layout.status().message()));
    (IsNewer(layout.status()) ? out_.newer : out_.lost) = true;
    out_.debris.push_back(PathOf(name));
    return absl::OkStatus();
  }

  template <typename T>
  absl::StatusOr<T> Noted(absl::StatusOr<T> read) {
    if (IsUnread(read.status())) unread_ = read.status();
    return read;
  }

  // The first bytes before the rest: a newer major may have files larger than any of ours.
  absl::Status CheckNewer(const std::string& path) {
    CKPTD_ASSIGN_OR_RETURN(auto file, Noted(files_.Open(path, {})));
    std::vector<std::byte> first(sizeof(Superblock));
    CKPTD_ASSIGN_OR_RETURN(size_t got, Noted(file->PRead(0, first)));
    absl::Status status = ParseCtlHead(std::span(first).first(got)).status();
    return IsNewer(status) ? status : absl::OkStatus();
  }

  absl::StatusOr<ScannedLayout> ReadLayout(const std::string& name) {
    CKPTD_RETURN_IF_ERROR(CheckNewer(PathOf(name)));
    CKPTD_ASSIGN_OR_RETURN(std::string text, Noted(ReadSmall(files_, PathOf(name), kMaxCtlBytes)));
    ScannedLayout layout;
    CKPTD_ASSIGN_OR_RETURN(layout.head, ParseCtlHead(BytesOf(text)));
    CKPTD_RETURN_IF_ERROR(CheckPlace(layout.head, name));
    const Superblock& block = layout.head.block;
    const auto grant = CopyAt<PlainGrant>(BytesOf(text), block.states_offset);
    layout.grant = {grant.word, grant.floor, grant.attempt, {grant.parent_attempt, grant.parent_step}};
    for (uint32_t slot = 0; slot < block.slot_count; ++slot) {
      layout.slots.push_back(ReadSlot(layout.head, BytesOf(text), slot));
      out_.lost |= layout.slots.back().lost;
    }
    CKPTD_RETURN_IF_ERROR(unread_);
    return layout;
  }

  absl::Status CheckPlace(const CtlHead& head, const std::string& name) const {
    if (head.block.region_id == region_id_ && head.job() == job_.job && head.block.rank == out_.rank &&
        name == CtlFileName(head.block.layout))
      return absl::OkStatus();
    return Error(ErrorCode::CORRUPT, absl::StrCat("is of job ", head.job(), " rank ", head.block.rank, " layout ",
                                                  head.block.layout, " of region ", absl::Hex(head.block.region_id)));
  }

  ScannedSlot ReadSlot(const CtlHead& head, std::span<const std::byte> file, uint32_t slot) {
    const Superblock& block = head.block;
    ScannedSlot out;
    const auto state =
        CopyAt<PlainSlotState>(file, block.states_offset + sizeof(PlainGrant) + slot * sizeof(PlainSlotState));
    out.now.flags = state.flags;
    out.now.file_id = state.file_id;
    out.now.owner = {state.owner_ticket, state.owner_attempt, static_cast<int32_t>(state.owner_pid), state.owner_start};
    ReadWord(state.word, out);
    CheckOwner(state.owner_pid, out);
    CheckFile(head, out);
    if (out.now.state == SlotStateCode::kSealed || out.now.state == SlotStateCode::kQuarantined) {
      ReadRecord(head, file.subspan(block.records_offset + slot * block.record_stride, block.record_stride), out);
      out.lost = !out.file_whole || out.now.record == nullptr;
    }
    return out;
  }

  // The owner stands before the word says FILLING. Without one nobody's death would end the fill, and the rank would
  // never be lent another slot.
  static void CheckOwner(uint64_t pid, ScannedSlot& out) {
    if (out.now.state != SlotStateCode::kFilling || (pid != 0 && pid < kMostPids)) return;
    out.now.state = SlotStateCode::kRetired;
    out.now.owner = {};
    out.lost = true;
    out.problem = absl::StrCat("is being filled by process ", pid, ", which cannot be");
  }

  // A word that no agent wrote says nothing about who may write the slot: the careful reading is RETIRED.
  static void ReadWord(uint64_t word, ScannedSlot& out) {
    const uint64_t code = word & 0xff;
    out.now.epoch = word >> 8;
    out.now.state = static_cast<SlotStateCode>(code);
    if (code <= static_cast<uint64_t>(SlotStateCode::kPreparing) && out.now.epoch <= kMaxEpoch) return;
    out.now.epoch = 0;
    out.now.state = SlotStateCode::kRetired;
    out.lost = true;
    out.problem = absl::StrCat("state word ", absl::Hex(word), " has no meaning");
  }

  void CheckFile(const CtlHead& head, ScannedSlot& out) {
    const std::string name = SlotFileName(out.now.file_id);
    if (out.now.file_id == 0 || !slot_names_.contains(name) || !claimed_.insert(name).second) {
      out.problem = absl::StrCat(name, ": no such file");
      return;
    }
    const absl::StatusOr<FileInfo> info = Noted(files_.Stat(PathOf(name)));
    out.file_whole = info.ok() && info->size == head.slot_file_bytes();
    if (out.file_whole) return;
    out.problem = absl::StrCat(name, ": not of its size");
    out_.debris.push_back(PathOf(name));
  }

  void ReadRecord(const CtlHead& head, std::span<const std::byte> bytes, ScannedSlot& out) const {
    absl::StatusOr<SlotRecord> record = ParseRecord(head, bytes, out.now.epoch);
    if (record.ok() && parity_) ReadParity(head, bytes, record->head, out);
    if (record.ok() && (!parity_ || out.now.parity != nullptr))
      out.now.record = std::make_shared<const SlotRecord>(*std::move(record));
    else if (!record.ok())
      out.problem = std::string(record.status().message());
  }

  static void ReadParity(const CtlHead& head, std::span<const std::byte> bytes, const RecordHead& record,
                         ScannedSlot& out) {
    absl::StatusOr<ParityRecord> parity = ParseParity(bytes.subspan(head.tail_offset()), record, head.block.rank);
    if (parity.ok())
      out.now.parity = std::make_shared<const ParityRecord>(*std::move(parity));
    else
      out.problem = std::string(parity.status().message());
  }

  Files& files_;
  const ScannedJob& job_;
  const uint64_t region_id_;
  const bool parity_;
  ScannedRank& out_;
  absl::Status unread_;  // ends the scan
  std::vector<std::string> ctl_names_;
  std::set<std::string> slot_names_;
  std::set<std::string> claimed_;  // by a slot: a file belongs to one
};

bool ParseRankName(absl::string_view name, Rank& rank) {
  return absl::ConsumePrefix(&name, "rank-") && absl::SimpleAtoi(name, &rank) && rank < kMaxRanks;
}

absl::Status ScanRank(Files& files, uint64_t region_id, const std::string& name, ScannedJob& job) {
  ScannedRank rank;
  rank.dir = absl::StrCat(job.dir, "/", name);
  if (!ParseRankName(name, rank.rank) || RankDirName(rank.rank) != name) {
    job.problems.push_back(absl::StrCat(rank.dir, ": not a rank's directory, left alone"));
    return absl::OkStatus();
  }
  CKPTD_RETURN_IF_ERROR(RankScan(files, job, region_id, false, rank).Run());
  job.ranks.push_back(std::move(rank));
  return absl::OkStatus();
}

absl::Status ScanPeer(Files& files, uint64_t region_id, const PeerKey& key, ScannedJob& job) {
  ScannedPeer peer{.key = key, .held = {}};
  peer.held.rank = key.number;
  peer.held.dir = absl::StrCat(job.dir, "/", PeerDirName(key));
  CKPTD_RETURN_IF_ERROR(RankScan(files, job, region_id, key.kind == PeerKind::kParity, peer.held).Run());
  job.peers.push_back(std::move(peer));
  return absl::OkStatus();
}

absl::Status ScanDirectory(Files& files, uint64_t region_id, const std::string& name, ScannedJob& job) {
  if (const std::optional<PeerKey> peer = ParsePeerDirName(name)) return ScanPeer(files, region_id, *peer, job);
  return ScanRank(files, region_id, name, job);
}

absl::Status ScanJournal(Files& files, uint64_t region_id, ScannedJob& job) {
  const std::string path = absl::StrCat(job.dir, "/", kJournalName);
  absl::StatusOr<std::string> text = ReadSmall(files, path, kMaxJournalBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  if (IsUnread(text.status())) return text.status();
  absl::StatusOr<JournalContent> content = text.ok() ? ParseJournal(BytesOf(*text), job.job, region_id) : text.status();
  if (content.ok()) {
    job.journal_valid = true;
    job.seen = content->seen;
    job.lost = content->lost;
    job.marks = content->marks;
    job.uid = content->uid;
    return absl::OkStatus();
  }
  job.newer = IsNewer(content.status());
  job.problems.push_back(absl::StrCat(path, ": ", content.status().message()));
  job.debris.push_back(path);
  return absl::OkStatus();
}

// Without a good journal: nothing below what the slots tell of may be taken for the highest attempt.
void GuessJournal(ScannedJob& job) {
  for (const ScannedRank& rank : job.ranks) {
    for (const ScannedLayout& layout : rank.layouts) {
      job.uid = layout.head.block.uid;
      job.seen = std::max(job.seen, layout.grant.attempt);
      for (const ScannedSlot& slot : layout.slots) {
        job.seen = std::max(job.seen, slot.now.owner.attempt);
        if (slot.now.record != nullptr) job.seen = std::max(job.seen, slot.now.record->head.attempt);
      }
    }
  }
}

absl::Status ScanJob(Files& files, uint64_t region_id, ScannedJob& job) {
  CKPTD_RETURN_IF_ERROR(ScanJournal(files, region_id, job));
  if (job.newer) {
    job.debris.clear();
    return absl::OkStatus();
  }
  CKPTD_ASSIGN_OR_RETURN(std::vector<DirEntry> entries, files.ReadDir(job.dir, kMaxEntries));
  for (const DirEntry& entry : entries) {
    if (entry.type == FileType::kDirectory)
      CKPTD_RETURN_IF_ERROR(ScanDirectory(files, region_id, entry.name, job));
    else if (absl::StartsWith(entry.name, kTemporaryPrefix))
      job.debris.push_back(absl::StrCat(job.dir, "/", entry.name));
  }
  if (!job.journal_valid) GuessJournal(job);
  const bool lost = std::any_of(job.ranks.begin(), job.ranks.end(), [](const auto& rank) { return rank.lost; });
  if (lost || !job.journal_valid) job.lost = job.seen;
  return absl::OkStatus();
}

}  // namespace

std::string RankDirName(Rank rank) { return absl::StrFormat("rank-%05u", rank); }

absl::StatusOr<uint64_t> ReadRegionId(Files& files, const std::string& dir) {
  const std::string path = absl::StrCat(dir, "/", kRegionIdName);
  CKPTD_ASSIGN_OR_RETURN(std::string text, ReadSmall(files, path, 64));
  uint64_t id = 0;
  if (text.size() == 17 && text.back() == '\n' && absl::SimpleHexAtoi(text.substr(0, 16), &id) && id != 0) return id;
  return Error(ErrorCode::CORRUPT, absl::StrCat(path, ": is no region id; without it no slot here can be trusted"));
}

absl::StatusOr<RegionScan> ScanRegion(Files& files, const std::string& dir) {
  RegionScan scan;
  CKPTD_ASSIGN_OR_RETURN(scan.region_id, ReadRegionId(files, dir));
  CKPTD_ASSIGN_OR_RETURN(std::vector<DirEntry> entries, files.ReadDir(dir, kMaxEntries));
  for (const DirEntry& entry : entries) {
    if (absl::StartsWith(entry.name, ".")) continue;
    ScannedJob job;
    job.job = entry.name;
    job.dir = absl::StrCat(dir, "/", entry.name);
    if (entry.type != FileType::kDirectory || !CheckJobName(entry.name).ok()) {
      scan.problems.push_back(absl::StrCat(job.dir, ": not a job's directory, left alone"));
      continue;
    }
    CKPTD_RETURN_IF_ERROR(ScanJob(files, scan.region_id, job));
    scan.jobs.push_back(std::move(job));
  }
  return scan;
}

}  // namespace ckptd::region
