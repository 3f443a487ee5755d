// Heads, records, journals and bells under damage: whatever the bytes are, they are refused or harmless.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <random>

#include "client/core/copy/fill_check.h"
#include "daemon/base/errors.h"
#include "daemon/os/memfd.h"
#include "daemon/region/job_journal.h"
#include "daemon/region/region_test_util.h"

namespace ckptd::region {
namespace {

constexpr int kMutations = 10000;

CtlHead TestHead() { return *MakeCtlHead(TestSpec(), 11, 1, 0); }

// A whole ctl file of this head, one slot sealed.
std::vector<std::byte> TestCtl(const CtlHead& head, const SlotRecord& record) {
  std::vector<std::byte> file = EncodeCtlHead(head);
  file.resize(head.block.file_bytes);
  std::byte* area = file.data() + head.block.records_offset;
  std::memcpy(area, &record.head, sizeof(record.head));
  std::memcpy(area + sizeof(record.head), record.chunk_crcs.data(), record.chunk_crcs.size() * sizeof(uint32_t));
  return file;
}

void Mutate(std::mt19937_64& random, std::span<std::byte> bytes) {
  for (uint64_t n = random() % 4 + 1; n > 0; --n)
    bytes[random() % bytes.size()] ^= static_cast<std::byte>(random() % 255 + 1);
}

// A head whose CRCs are right whatever else is in it: what the bounds checks alone must stop.
void FixCrcs(std::vector<std::byte>& file) {
  Superblock block;
  std::memcpy(&block, file.data(), sizeof(block));
  block.head_bytes = sizeof(block);
  block.file_bytes = file.size();
  const uint64_t table = uint64_t{block.image_count} * sizeof(ImageExtent);
  if (block.images_offset < file.size() && table <= file.size() - block.images_offset)
    block.tables_crc = Crc32c(0, file.data() + block.images_offset, table);
  block.head_crc = 0;
  block.head_crc = Crc32c(0, &block, sizeof(block));
  std::memcpy(file.data(), &block, sizeof(block));
}

TEST(Superblock, RoundTrip) {
  CtlHead head = TestHead();
  std::vector<std::byte> file = EncodeCtlHead(head);
  file.resize(head.block.file_bytes);
  auto parsed = ParseCtlHead(file);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(std::memcmp(&parsed->block, &head.block, sizeof(Superblock)), 0);
  EXPECT_EQ(parsed->job(), "gpt");
  EXPECT_EQ(parsed->images[0].bytes, kTestSlotBytes);
}

TEST(Superblock, EverySingleFlippedBitIsRefused) {
  CtlHead head = TestHead();
  std::vector<std::byte> file = EncodeCtlHead(head);
  file.resize(head.block.file_bytes);
  const size_t covered = head.block.images_offset + sizeof(ImageExtent);
  for (size_t bit = 0; bit < covered * 8; ++bit) {
    if (bit / 8 >= sizeof(Superblock) && bit / 8 < head.block.images_offset) continue;  // padding
    file[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_FALSE(ParseCtlHead(file).ok()) << "bit " << bit;
    file[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
}

TEST(Superblock, NewerMajorIsToldApart) {
  CtlHead head = TestHead();
  head.block.major = kRegionMajor + 1;
  std::vector<std::byte> file = EncodeCtlHead(head);
  EXPECT_EQ(CodeOf(ParseCtlHead(file).status()), ErrorCode::NEWER_VERSION);
}

// With good CRCs: accepted only when the numbers bound what is computed from them.
TEST(Superblock, FuzzedNumbersWithGoodChecksumsStayInBounds) {
  std::mt19937_64 random(1);
  CtlHead head = TestHead();
  int accepted = 0;
  for (int i = 0; i < kMutations; ++i) {
    std::vector<std::byte> file = EncodeCtlHead(head);
    file.resize(head.block.file_bytes);
    Mutate(random, std::span(file).first(head.block.images_offset + sizeof(ImageExtent)));
    FixCrcs(file);
    auto parsed = ParseCtlHead(file);
    if (!parsed.ok()) continue;
    ++accepted;
    const Superblock& block = parsed->block;
    EXPECT_LE(block.states_offset + sizeof(Grant) + block.slot_count * sizeof(SlotState), block.records_offset);
    EXPECT_LE(block.records_offset + block.slot_count * block.record_stride, file.size());
    EXPECT_LE(BellBytes(*parsed), uint64_t{1} << 30);
  }
  EXPECT_GT(accepted, 0) << "the fuzz never gets past the checks: it tests nothing";
}

TEST(Superblock, TruncatedFilesAreRefused) {
  CtlHead head = TestHead();
  std::vector<std::byte> file = EncodeCtlHead(head);
  file.resize(head.block.file_bytes);
  for (size_t size = 0; size < file.size(); size += 7) EXPECT_FALSE(ParseCtlHead(std::span(file).first(size)).ok());
}

TEST(Superblock, ChunkSizes) {
  EXPECT_EQ(ChunkBytesFor(4096), kMiB);
  EXPECT_EQ(ChunkBytesFor(8 * kGiB), kMiB);
  EXPECT_EQ(ChunkBytesFor(16 * kGiB), 2 * kMiB);
  EXPECT_EQ(ChunkBytesFor(uint64_t{1} << 50), kMaxChunkBytes);
}

TEST(Record, RoundTripAndFuzz) {
  CtlHead head = TestHead();
  SlotRecord record = *MakeRecord(head, HeadOf(100, 7), CrcsOf(Content(100)));
  EXPECT_EQ(record.ChunkLength(2), kTestChunkBytes);
  std::vector<std::byte> file = TestCtl(head, record);
  std::span<std::byte> area = std::span(file).subspan(head.block.records_offset, head.block.record_stride);
  auto parsed = ParseRecord(head, area, 7);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->id(), (SnapshotId{1, 100}));
  EXPECT_EQ(parsed->chunk_crcs, CrcsOf(Content(100)));
  EXPECT_FALSE(ParseRecord(head, area, 8).ok()) << "of another epoch";
  const size_t covered = sizeof(RecordHead) + 3 * sizeof(uint32_t);
  for (size_t bit = 0; bit < covered * 8; ++bit) {
    area[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_FALSE(ParseRecord(head, area, 7).ok()) << "bit " << bit;
    area[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
}

TEST(Record, LastChunkIsShort) {
  CtlHead head = *MakeCtlHead(TestSpec(kTestSlotBytes + 4096), 11, 1, 0);
  SlotRecord record = *MakeRecord(head, HeadOf(1, 1), {1, 2, 3, 4});
  EXPECT_EQ(record.ChunkLength(3), 4096u);
}

TEST(Journal, GarbageIsRefused) {
  TempDir dir;
  auto journal = JobJournal::Create(PosixFiles(), dir.path(), "gpt", 11, {1000, 0, 0});
  ASSERT_TRUE(journal.ok()) << journal.status();
  (*journal)->SetSeen(3);
  (*journal)->SetSeen(2);
  std::string file = *ReadSmall(PosixFiles(), dir.path() + "/job", 4096);
  EXPECT_EQ(ParseJournal(std::as_bytes(std::span(file)), "gpt", 11)->seen, 3u);
  EXPECT_EQ(ParseJournal(std::as_bytes(std::span(file)), "gpt", 11)->lost, 0u);
  EXPECT_FALSE(ParseJournal(std::as_bytes(std::span(file)), "gpt", 12).ok());
  EXPECT_FALSE(ParseJournal(std::as_bytes(std::span(file)), "other", 11).ok());
  std::string longer = file;
  std::memset(longer.data() + 24, 'x', kJobNameBytes);
  EXPECT_FALSE(ParseJournal(std::as_bytes(std::span(longer)), "gpt", 11).ok());
  file[8] = kRegionMajor + 1;
  EXPECT_EQ(CodeOf(ParseJournal(std::as_bytes(std::span(file)), "gpt", 11).status()), ErrorCode::NEWER_VERSION);
}

// Minor 0 ends before `lost`, minor 1 before the marks: read as none, and made longer by who opens it.
TEST(Journal, AnOlderMinorIsExtended) {
  for (const size_t bytes : {168, 176}) {
    TempDir dir;
    const std::string path = dir.path() + "/job";
    ASSERT_TRUE(JobJournal::Create(PosixFiles(), dir.path(), "gpt", 11, {1000, 3, 0}).ok());
    std::filesystem::resize_file(path, bytes);
    const std::string old = *ReadSmall(PosixFiles(), path, 4096);
    const auto content = ParseJournal(std::as_bytes(std::span(old)), "gpt", 11);
    ASSERT_TRUE(content.ok()) << content.status();
    EXPECT_EQ(content->lost, 0u);
    EXPECT_EQ(content->marks, KeptMarks());
    auto journal = JobJournal::Open(PosixFiles(), dir.path(), {1000, 3, 2});
    ASSERT_TRUE(journal.ok()) << journal.status();
    const KeptMarks marks{3, {{2, 10}, {3, 12}, {}, 0}};
    (*journal)->Raise(marks);
    const std::string now = *ReadSmall(PosixFiles(), path, 4096);
    EXPECT_EQ(ParseJournal(std::as_bytes(std::span(now)), "gpt", 11)->lost, 2u);
    EXPECT_EQ(ParseJournal(std::as_bytes(std::span(now)), "gpt", 11)->marks, marks);
  }
}

TEST(Journal, KeepsTheMarksOfTheHighestAttempt) {
  TempDir dir;
  const auto kept = [&] {
    const std::string file = *ReadSmall(PosixFiles(), dir.path() + "/job", 4096);
    return ParseJournal(std::as_bytes(std::span(file)), "gpt", 11)->marks;
  };
  auto journal = *JobJournal::Create(PosixFiles(), dir.path(), "gpt", 11, {1000, 3, 0});
  EXPECT_EQ(kept(), KeptMarks());
  journal->Raise({3, {{2, 10}, {3, 12}, {}, 0}});
  journal->Raise({3, {{3, 12}, {3, 12}, {2, 10}, 1}});
  journal->Raise({3, {{2, 10}, {3, 12}, {}, 0}});
  const KeptMarks all{3, {{3, 12}, {3, 12}, {2, 10}, 1}};
  EXPECT_EQ(kept(), all);
  EXPECT_EQ(journal->marks(), all);
  journal->Raise({2, {{9, 9}, {9, 9}, {9, 9}, 9}});
  EXPECT_EQ(kept(), all) << "of an older attempt";
  journal->Raise({4, {{}, {3, 12}, {}, 0}});
  const KeptMarks next{4, {{}, {3, 12}, {}, 0}};
  EXPECT_EQ(kept(), next);
  journal = *JobJournal::Open(PosixFiles(), dir.path(), {1000, 3, 0, next});
  EXPECT_EQ(journal->marks(), next);
  EXPECT_EQ(kept(), next) << "by the agent after this one";
}

// An agent that is killed while it writes has not made them count yet.
TEST(Journal, MarksThatDoNotCheckAreNone) {
  TempDir dir;
  const std::string path = dir.path() + "/job";
  auto journal = *JobJournal::Create(PosixFiles(), dir.path(), "gpt", 11, {1000, 3, 0});
  journal->Raise({3, {{2, 10}, {3, 12}, {}, 0}});
  const std::string good = *ReadSmall(PosixFiles(), path, 4096);
  size_t none = 0;
  size_t same = 0;
  for (size_t at = offsetof(ckptd::JobJournal, marks); at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    const KeptMarks marks = ParseJournal(std::as_bytes(std::span(bad)), "gpt", 11)->marks;
    none += marks == KeptMarks() ? 1 : 0;
    same += marks == journal->marks() ? 1 : 0;
  }
  EXPECT_EQ(none, sizeof(JournalMarks)) << "each byte of those that count";
  EXPECT_EQ(same, sizeof(JournalMarks)) << "and of the others";
}

// ------------------------------------------------------------------------------------------------------------- bell

class BellTest : public ::testing::Test {
 protected:
  // The trainer's mapping of the same memory.
  std::span<std::byte> TrainerMaps(const Bell& bell) {
    const uint64_t bytes = BellBytes(head_);
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, bell.fd(), 0);
    EXPECT_NE(at, MAP_FAILED);
    return {static_cast<std::byte*>(at), bytes};
  }
  static BellSlot& SlotIn(std::span<std::byte> memory, uint32_t slot) {
    auto& head = *reinterpret_cast<BellHead*>(memory.data());
    return reinterpret_cast<BellSlot*>(memory.data() + head.slots_offset)[slot];
  }
  static std::atomic<uint64_t>* ChunksIn(std::span<std::byte> memory, uint32_t slot) {
    auto& head = *reinterpret_cast<BellHead*>(memory.data());
    return reinterpret_cast<std::atomic<uint64_t>*>(memory.data() + head.chunks_offset) +
           slot * BellRow(head.chunk_count);
  }

  CtlHead head_ = TestHead();
  std::unique_ptr<Bell> bell_ = *Bell::Create(head_);
};

TEST_F(BellTest, AFillAsTheTrainerTellsIt) {
  std::span<std::byte> memory = TrainerMaps(*bell_);
  bell_->Open(1, 9);
  BellSlot& slot = SlotIn(memory, 1);
  slot.step = 100;
  slot.attempt = 4;
  FillCheck check(9, 100, 4);
  for (uint32_t crc : {50, 51, 52}) check.Add(crc);
  for (uint32_t chunk = 0; chunk < 2; ++chunk) ChunksIn(memory, 1)[chunk] = ChunkEntry(9, chunk + 50);
  EXPECT_EQ(bell_->DonePrefix(1, 9, 0), 2u);
  EXPECT_FALSE(bell_->ReadChunks(1, bell_->ReadSlot(1)).ok()) << "the third is missing";
  ChunksIn(memory, 1)[2] = ChunkEntry(9, 52);
  EXPECT_FALSE(bell_->ReadChunks(1, bell_->ReadSlot(1)).ok()) << "the check is missing";
  ChunksIn(memory, 1)[3] = ChunkEntry(9, check.value());
  slot.word = CaptureWord(9, CaptureState::kComplete);
  reinterpret_cast<BellHead*>(memory.data())->pos = 100;
  BellView view = bell_->Read();
  EXPECT_EQ(view.pos, 100u);
  EXPECT_EQ(view.slots[1].state, CaptureState::kComplete);
  EXPECT_EQ(view.slots[1].step, 100u);
  EXPECT_EQ(view.slots[0].state, CaptureState::kNone);
  EXPECT_THAT(*bell_->ReadChunks(1, view.slots[1]), ::testing::ElementsAre(50, 51, 52));
  for (auto wrong : {&BellSlotView::epoch, &BellSlotView::step, &BellSlotView::attempt}) {
    BellSlotView other = view.slots[1];
    ++(other.*wrong);
    EXPECT_FALSE(bell_->ReadChunks(1, other).ok()) << "something else wrote over it";
  }
  EXPECT_EQ(bell_->Abandon(1, 9), AbandonOutcome::kComplete);
  munmap(memory.data(), memory.size());
}

TEST_F(BellTest, AbandonIsDecidedByTheWord) {
  EXPECT_EQ(bell_->Abandon(0, 9), AbandonOutcome::kNotOpen);
  bell_->Open(0, 9);
  EXPECT_EQ(bell_->Abandon(0, 8), AbandonOutcome::kNotOpen);
  EXPECT_EQ(bell_->Abandon(0, 9), AbandonOutcome::kAbandoned);
  EXPECT_EQ(bell_->Abandon(0, 9), AbandonOutcome::kAbandoned);
  EXPECT_EQ(bell_->ReadSlot(0).state, CaptureState::kAbandoned);
}

// An acknowledgement above every epoch makes no sense, and would else make none of any later fill.
TEST_F(BellTest, OpeningForgetsAStrayAcknowledgement) {
  std::span<std::byte> memory = TrainerMaps(*bell_);
  bell_->Open(1, 9);
  SlotIn(memory, 1).ack = ~uint64_t{0};
  EXPECT_EQ(bell_->ReadSlot(1).epoch, 0u);
  bell_->Open(1, 12);
  EXPECT_EQ(bell_->ReadSlot(1).epoch, 12u);
  EXPECT_EQ(bell_->ReadSlot(1).state, CaptureState::kOpen);
  munmap(memory.data(), memory.size());
}

TEST_F(BellTest, ComesBackFromTheTrainer) {
  bell_->Open(0, 9);
  auto back = Bell::Attach(UniqueFd(dup(bell_->fd())), head_);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ((*back)->ReadSlot(0).epoch, 9u);
}

// The trainer lives through an upgrade of the agent: its bell is of the agent before. Minors only add.
TEST_F(BellTest, OfAnotherMinorComesBackToo) {
  std::span<std::byte> memory = TrainerMaps(*bell_);
  auto& head = *reinterpret_cast<BellHead*>(memory.data());
  bell_->Open(0, 9);
  for (const uint16_t minor : {0, 1, kRegionMinor + 1}) {
    head.minor = minor;
    for (const uint64_t bytes : {offsetof(BellHead, wanted), sizeof(BellHead), head.slots_offset}) {
      head.head_bytes = static_cast<uint32_t>(bytes);
      auto back = Bell::Attach(UniqueFd(dup(bell_->fd())), head_);
      ASSERT_TRUE(back.ok()) << "minor " << minor << ", " << bytes << " bytes: " << back.status();
      EXPECT_EQ((*back)->ReadSlot(0).epoch, 9u);
    }
  }
  munmap(memory.data(), memory.size());
}

TEST_F(BellTest, AHeadThatCannotBeIsRefused) {
  std::span<std::byte> memory = TrainerMaps(*bell_);
  auto& head = *reinterpret_cast<BellHead*>(memory.data());
  const auto code = [&] { return CodeOf(Bell::Attach(UniqueFd(dup(bell_->fd())), head_).status()); };
  for (const uint64_t bytes :
       {uint64_t{0}, offsetof(BellHead, wanted) - 1, head.slots_offset + 1, uint64_t{UINT32_MAX}}) {
    head.head_bytes = static_cast<uint32_t>(bytes);
    EXPECT_EQ(code(), ErrorCode::REFUSED) << bytes;
  }
  head.head_bytes = sizeof(BellHead);
  ASSERT_TRUE(Bell::Attach(UniqueFd(dup(bell_->fd())), head_).ok());
  for (size_t at = 0; at < offsetof(BellHead, pos); ++at) {
    if (at >= offsetof(BellHead, minor) && at < offsetof(BellHead, bell_id)) continue;
    memory[at] ^= std::byte{1};
    EXPECT_EQ(code(), ErrorCode::REFUSED) << "byte " << at;
    memory[at] ^= std::byte{1};
  }
  munmap(memory.data(), memory.size());
}

TEST_F(BellTest, ForeignMemoryIsRefused) {
  CtlHead other = *MakeCtlHead(TestSpec(), 11, 1, 0);  // same shape, another bell id
  EXPECT_EQ(CodeOf(Bell::Attach(UniqueFd(dup(bell_->fd())), other).status()), ErrorCode::REFUSED);
  UniqueFd unsealed = *CreateMemfd("test", BellBytes(head_));
  EXPECT_FALSE(Bell::Attach(std::move(unsealed), head_).ok());
  UniqueFd large = *CreateMemfd("test", 2 * BellBytes(head_));
  ASSERT_TRUE(AddSeals(large.get(), kSealsOfSize).ok());
  EXPECT_EQ(CodeOf(Bell::Attach(std::move(large), head_).status()), ErrorCode::INVALID_ARGUMENT);
  EXPECT_FALSE(Bell::Attach(UniqueFd(dup(bell_->hint_fd())), head_).ok());
}

TEST_F(BellTest, TrainerCannotChangeItsSize) {
  EXPECT_NE(ftruncate(bell_->fd(), 0), 0);
  EXPECT_NE(ftruncate(bell_->fd(), 1 << 20), 0);
}

TEST_F(BellTest, GarbageNeverCrashesAndViewsStaySane) {
  std::span<std::byte> memory = TrainerMaps(*bell_);
  std::mt19937_64 random(2);
  for (int i = 0; i < kMutations; ++i) {
    Mutate(random, memory.first(1024));
    for (const BellSlotView& slot : bell_->Read().slots) {
      EXPECT_LE(slot.epoch, kMaxEpoch);
      EXPECT_LE(slot.ack, slot.epoch);
      EXPECT_LE(slot.begin_ns, slot.end_ns);
      EXPECT_TRUE(slot.state != CaptureState::kNone || slot.epoch == 0);
    }
    (void)bell_->ReadChunks(i % 2, {.epoch = random()});
    (void)bell_->Abandon(i % 2, random() & kMaxEpoch);
  }
  bell_->Open(0, 5);
  EXPECT_LE(bell_->ReadSlot(0).epoch, 5u);
  munmap(memory.data(), memory.size());
}

}  // namespace
}  // namespace ckptd::region
