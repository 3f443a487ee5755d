// Feeds a region directory of one rank to a starting agent (Region::Open): the job's journal, a ctl file, and slot
// files that are there, missing or cut. The directory is a real one on a tmpfs, as the agent maps what it adopts.
//
//   byte 0   which files are there, see Files
//   byte 1   length of the journal, which follows
//   rest     the ctl file
//
// Whatever stands there, the agent must start, say the same of each slot as `ckptctl salvage`, and a second start must
// find exactly what the first one left, with nothing to tidy up.
#include "daemon/region/region.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <set>

#include "client/core/copy/crc32c.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/testing/temp_dir.h"
#include "daemon/region/ctl_file.h"
#include "daemon/region/salvage.h"
#include "daemon/region/slot_file.h"
#include "tests/fuzz/fuzz.h"

namespace ckptd::fuzz {

using region::AdoptedLayout;
using region::AdoptReport;
using region::Region;

// Names and notes of a handful of files; the ctl file is read once in one piece.
const Allowed kAllowed = {512 << 10, 16};

namespace {

namespace fs = std::filesystem;

// The ids of the golden region (tests/golden/v1/region), whose files the seeds are.
constexpr uint64_t kSlotIds[] = {0xe9922ddf5d2334a2, 0xe28328295d23db07};
constexpr const char* kRegionId = "d980d2f1382c9a6a\n";

enum Files : uint8_t {
  kNoJournal = 1,
  kNoCtl = 2,
  kFirstMissing = 4,
  kFirstCut = 8,
  kSecondMissing = 16,
  kDebris = 32
};

void WriteFile(const std::string& path, Input bytes, uint64_t size) {
  const UniqueFd file(open(path.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600));
  FUZZ_CHECK(write(file.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  FUZZ_CHECK(ftruncate(file.get(), static_cast<off_t>(size)) == 0);
}

Input BytesOf(std::string_view text) { return {reinterpret_cast<const uint8_t*>(text.data()), text.size()}; }

void WriteSlots(const std::string& rank, uint8_t files) {
  const auto path = [&](uint64_t id) { return rank + "/" + region::SlotFileName(id); };
  const uint64_t first = (files & kFirstCut) != 0 ? kSlotAlignment - 4096 : kSlotAlignment;
  if ((files & kFirstMissing) == 0) WriteFile(path(kSlotIds[0]), {}, first);
  if ((files & kSecondMissing) == 0) WriteFile(path(kSlotIds[1]), {}, kSlotAlignment);
  if ((files & kDebris) == 0) return;
  WriteFile(path(1), {}, kSlotAlignment);
  WriteFile(rank + "/" + region::kTemporaryPrefix + "ctl.2", {}, 100);
}

void WriteRegion(const std::string& dir, Input input) {
  Reader in(input);
  const auto files = in.Take<uint8_t>();
  const Input journal = in.Bytes(in.Take<uint8_t>());
  const Input ctl = in.Bytes(input.size());
  const std::string rank = dir + "/gpt/rank-00000";
  fs::remove_all(dir);
  for (const std::string& made : {dir, dir + "/gpt", rank}) FUZZ_CHECK(mkdir(made.c_str(), 0700) == 0);
  WriteFile(dir + "/.id", BytesOf(kRegionId), std::strlen(kRegionId));
  if ((files & kNoJournal) == 0) WriteFile(dir + "/gpt/job", journal, journal.size());
  if ((files & kNoCtl) == 0) WriteFile(rank + "/ctl.1", ctl, ctl.size());
  WriteSlots(rank, files);
}

// A snapshot that is taken over has a file that no other slot has, and a record whose checksum is right.
void CheckSlot(const region::LayoutSet& set, uint32_t slot, std::set<uint64_t>& file_ids) {
  const region::SlotSnapshot& now = set.Slot(slot);
  FUZZ_CHECK(set.max_epoch() >= now.epoch);
  FUZZ_CHECK(now.file_id == 0 || file_ids.insert(now.file_id).second);
  if (now.state != SlotStateCode::kSealed) return;
  FUZZ_CHECK(set.DescriptorsForRestore(slot).ok() && now.record != nullptr);
  const std::vector<uint32_t>& crcs = now.record->chunk_crcs;
  RecordHead head = now.record->head;
  head.crc = 0;
  const uint32_t crc = Crc32c(Crc32c(0, &head, sizeof(head)), crcs.data(), crcs.size() * sizeof(uint32_t));
  FUZZ_CHECK(crc == now.record->head.crc && crcs.size() == set.head().block.chunk_count);
}

AdoptReport Adopt(const std::string& dir) {
  auto opened = Region::Open(PosixFiles(), SystemClock(), {.dir = dir, .uid = geteuid()});
  if (!opened.ok()) (void)std::fprintf(stderr, "%s\n", opened.status().ToString().c_str());
  FUZZ_CHECK(opened.ok());
  std::set<uint64_t> file_ids;
  for (const auto& [name, job] : (*opened)->jobs()) {
    for (const auto& [number, rank] : job->ranks()) {
      for (const auto& [layout, set] : rank->layouts()) {
        for (uint32_t slot = 0; slot < set->slot_count(); ++slot) CheckSlot(*set, slot, file_ids);
      }
    }
    FUZZ_CHECK(job->Facts().job == name);
  }
  return (*opened)->adopted();
}

bool Same(const region::SlotSnapshot& a, const region::SlotSnapshot& b) {
  const bool records = (a.record == nullptr) == (b.record == nullptr);
  return records && a.state == b.state && a.epoch == b.epoch && a.flags == b.flags && a.file_id == b.file_id &&
         a.owner == b.owner && (a.record == nullptr || a.record->chunk_crcs == b.record->chunk_crcs);
}

void CheckSame(const AdoptedLayout& a, const AdoptedLayout& b) {
  FUZZ_CHECK(a.layout == b.layout && a.world == b.world && a.slot_bytes == b.slot_bytes);
  FUZZ_CHECK(a.slots.size() == b.slots.size());
  for (size_t i = 0; i < a.slots.size(); ++i) FUZZ_CHECK(Same(a.slots[i], b.slots[i]));
}

void CheckSame(const AdoptReport& a, const AdoptReport& b) {
  FUZZ_CHECK(a.jobs.size() == b.jobs.size() && a.untouched == b.untouched);
  for (size_t job = 0; job < a.jobs.size(); ++job) {
    FUZZ_CHECK(a.jobs[job].seen == b.jobs[job].seen && a.jobs[job].lost == b.jobs[job].lost);
    FUZZ_CHECK(a.jobs[job].uid == b.jobs[job].uid && a.jobs[job].ranks.size() == b.jobs[job].ranks.size());
    for (size_t rank = 0; rank < a.jobs[job].ranks.size(); ++rank) {
      const auto& layouts = a.jobs[job].ranks[rank].layouts;
      const auto& others = b.jobs[job].ranks[rank].layouts;
      FUZZ_CHECK(layouts.size() == others.size());
      for (size_t i = 0; i < layouts.size(); ++i) CheckSame(layouts[i], others[i]);
    }
  }
}

size_t CountSealed(const AdoptReport& report) {
  size_t sealed = 0;
  for (const auto& job : report.jobs)
    for (const auto& rank : job.ranks)
      for (const auto& layout : rank.layouts)
        for (const auto& slot : layout.slots) sealed += slot.state == SlotStateCode::kSealed ? 1 : 0;
  return sealed;
}

template <typename T>
bool ReadAt(const std::vector<uint8_t>& bytes, size_t at, T& value) {
  if (at > bytes.size() || sizeof(value) > bytes.size() - at) return false;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return true;
}

template <typename T>
void WriteAt(std::vector<uint8_t>& bytes, size_t at, const T& value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

// The record of a slot: its own length stands in it.
void RepairRecord(std::vector<uint8_t>& ctl, size_t at) {
  RecordHead head;
  if (!ReadAt(ctl, at, head) || head.bytes < sizeof(head) || head.bytes > ctl.size() - at) return;
  head.crc = 0;
  head.crc = Crc32c(Crc32c(0, &head, sizeof(head)), ctl.data() + at + sizeof(head), head.bytes - sizeof(head));
  WriteAt(ctl, at, head);
}

void RepairTables(std::vector<uint8_t>& ctl, Superblock& block) {
  const uint64_t bytes = uint64_t{block.image_count} * sizeof(ImageExtent);
  if (block.images_offset > ctl.size() || bytes > ctl.size() - block.images_offset) return;
  block.tables_crc = Crc32c(0, ctl.data() + block.images_offset, bytes);
  for (uint32_t slot = 0; slot < std::min(block.slot_count, kMaxSlots); ++slot) {
    const uint64_t at = block.records_offset + slot * block.record_stride;
    if (at < ctl.size()) RepairRecord(ctl, at);
  }
}

void RepairCtl(std::vector<uint8_t>& ctl) {
  Superblock block;
  if (!ReadAt(ctl, 0, block)) return;
  block.file_bytes = ctl.size();
  RepairTables(ctl, block);
  block.head_crc = 0;
  const uint64_t head = block.head_bytes < sizeof(block) ? sizeof(block) : block.head_bytes;
  uint32_t crc = Crc32c(0, &block, sizeof(block));
  if (head <= ctl.size()) crc = Crc32c(crc, ctl.data() + sizeof(block), head - sizeof(block));
  block.head_crc = crc;
  WriteAt(ctl, 0, block);
}

}  // namespace

void Run(Input input) {
  static const auto* const temporary = new TempDir("/dev/shm");
  static const std::string dir = temporary->path() + "/region";
  static const bool removed_at_exit = std::atexit([] { fs::remove_all(temporary->path()); }) == 0;
  FUZZ_CHECK(removed_at_exit);
  SetLogLevel(kError);
  WriteRegion(dir, input);
  auto salvaged = region::ListSalvage(PosixFiles(), dir);
  FUZZ_CHECK(salvaged.ok());
  const AdoptReport first = Adopt(dir);
  FUZZ_CHECK(salvaged->size() == CountSealed(first));
  const AdoptReport second = Adopt(dir);
  CheckSame(first, second);
  for (const std::string& note : second.notes) FUZZ_CHECK(note.find("removed") == std::string::npos);
}

void Repair(std::vector<uint8_t>& input) {
  if (input.size() < 2) return;
  const size_t begin = 2 + size_t{input[1]};
  if (begin >= input.size()) return;
  std::vector<uint8_t> ctl(input.begin() + static_cast<std::ptrdiff_t>(begin), input.end());
  RepairCtl(ctl);
  std::copy(ctl.begin(), ctl.end(), input.begin() + static_cast<std::ptrdiff_t>(begin));
}

}  // namespace ckptd::fuzz
