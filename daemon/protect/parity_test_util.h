// A parity group and the agents that hold it, as a test plays them: images of unequal length, real parity, and what may
// become of both.
#ifndef CKPTD_DAEMON_PROTECT_PARITY_TEST_UTIL_H_
#define CKPTD_DAEMON_PROTECT_PARITY_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/format/snapshot_ref.h"
#include "daemon/protect/copy_messages.h"
#include "daemon/protect/copy_test_util.h"
#include "daemon/protect/parity_fetch.h"
#include "daemon/region/region_test_util.h"
#include "daemon/transport/copies.h"

namespace ckptd::protect {

using TestBytes = std::vector<std::byte>;

// Rank i is on agent i of "a", "b" and so on.
inline std::string AgentOf(Rank rank) { return std::string(1, static_cast<char>('a' + rank)); }

struct TestGroup {
  static constexpr uint64_t kChunk = region::kTestChunkBytes;
  static constexpr SnapshotId kId{1, 10};

  explicit TestGroup(const erasure::Shape& of) : shape(of) {
    std::mt19937 random(7);
    // One of a single chunk, which has nothing in its last blocks; others whose last chunk is short.
    for (Rank rank = 0; rank < shape.members(); ++rank) {
      const uint64_t bytes = rank == 0 ? kChunk : (3 + 3 * rank) * kChunk + (rank % 3) * 4096;
      TestBytes image(bytes);
      for (std::byte& byte : image) byte = static_cast<std::byte>(random());
      images.push_back(std::move(image));
    }
    for (uint32_t stripe = 0; stripe < shape.members(); ++stripe) Encode(stripe);
  }

  [[nodiscard]] ParityPlace PlaceIn(uint32_t stripe, uint32_t row = 0) const {
    ParityPlace place;
    for (Rank rank = 0; rank < shape.members(); ++rank) place.ranks.push_back(rank);
    place.shape = shape;
    place.stripe = stripe;
    place.row = row;
    return place;
  }
  [[nodiscard]] std::string HolderOf(uint32_t stripe, uint32_t row) const {
    return AgentOf(erasure::ParityHolder(shape, stripe, row));
  }
  void Encode(uint32_t stripe) {
    const ParityPlace place = PlaceIn(stripe);
    std::vector<erasure::ConstBytes> blocks;
    size_t longest = 0;
    for (const Rank rank : place.DataRanks()) {
      const erasure::Extent block = BlockGivenBy(place, rank, images[rank].size(), kChunk);
      blocks.push_back(erasure::ConstBytes(images[rank]).subspan(block.begin, block.size));
      longest = std::max<size_t>(longest, block.size);
    }
    std::vector<erasure::Bytes> out;
    for (uint32_t row = 0; row < shape.parity; ++row) {
      TestBytes& bytes = parity[{stripe, row}];
      bytes.assign(longest, std::byte{0});
      out.emplace_back(bytes);
    }
    EXPECT_TRUE(erasure::Code::Make(shape)->Encode(blocks, out).ok());
  }
  // Layout and record of a rank's image; its layout is the one that TestSpec() makes.
  [[nodiscard]] v1::DescribeResponse About(Rank rank) const {
    v1::DescribeResponse told;
    told.set_world_size(shape.members());
    v1::CopyLayout* layout = told.mutable_layout();
    layout->set_chunk_bytes(kChunk);
    layout->set_slot_bytes(images[rank].size());
    layout->set_header_crc(7);
    const std::vector<uint32_t> crcs = region::CrcsOf(images[rank]);
    SetRef(kId, told.mutable_record()->mutable_snapshot());
    told.mutable_record()->set_chunk_count(static_cast<uint32_t>(crcs.size()));
    told.mutable_record()->mutable_chunk_crc()->Assign(crcs.begin(), crcs.end());
    return told;
  }

  erasure::Shape shape;
  std::vector<TestBytes> images;
  std::map<std::pair<uint32_t, uint32_t>, TestBytes> parity;  // by stripe and row
};

// All other agents. What is asked waits until Answer() and Deliver().
class TestAgents final : public transport::CopyCalls {
 public:
  struct Transfer {
    transport::MoveOrder order;
    transport::BulkTarget target;
    transport::MoveDone done;
    TestBytes bytes;
    bool cancelled = false;
    bool gone = false;
  };
  using TransferPtr = std::shared_ptr<Transfer>;
  struct Question {
    std::string agent;
    v1::DescribeRequest request;
    transport::CopyAnswer<v1::DescribeResponse> answer;
  };

  explicit TestAgents(const TestGroup& of) : group(of) {}

  void Offer(const std::string&, v1::OfferRequest, Nanos, transport::CopyAnswer<v1::OfferResponse>) override {}
  void Seal(const std::string&, v1::SealRequest, Nanos, transport::CopyAnswer<v1::SealResponse>) override {}
  void Describe(const std::string& peer, v1::DescribeRequest request, Nanos,
                transport::CopyAnswer<v1::DescribeResponse> answer) override {
    ++asked[peer];
    questions.push_back({peer, std::move(request), std::move(answer)});
  }
  absl::StatusOr<std::unique_ptr<transport::CopyMove>> Send(transport::MoveOrder, transport::BulkSource,
                                                            const transport::SenderLimits&,
                                                            transport::MoveDone) override {
    return Error(ErrorCode::INTERNAL, "nothing is sent here");
  }
  absl::StatusOr<std::unique_ptr<transport::CopyMove>> Receive(transport::MoveOrder order, transport::BulkTarget target,
                                                               const transport::ReceiverLimits&,
                                                               transport::MoveDone done) override {
    const TestBytes& bytes = served.at(order.name.slot);
    if (order.image_bytes == 0 || order.image_bytes != bytes.size() || target.bytes.size() != bytes.size())
      return Error(ErrorCode::INVALID_ARGUMENT, "a transfer of another shape than what was asked for");
    moved += bytes.size();
    auto transfer =
        std::make_shared<Transfer>(Transfer{std::move(order), std::move(target), std::move(done), bytes, false, false});
    transfers.push_back(transfer);
    return std::make_unique<Move>(transfer, &moves);
  }

  // As its holder would, unless `says` says something else.
  void Answer() {
    const Question question = std::move(questions.front());
    questions.pop_front();
    if (says) {
      if (const auto other = says(question); other.has_value()) return question.answer(*other);
    }
    question.answer(Tell(question.request));
  }
  [[nodiscard]] absl::StatusOr<v1::DescribeResponse> Tell(const v1::DescribeRequest& request) {
    const TestBytes* bytes = &group.images[request.copy().rank()];
    v1::DescribeResponse told = group.About(request.copy().rank());
    if (request.has_parity()) {
      bytes = &group.parity.at({request.parity().stripe(), request.parity().row()});
      const std::vector<uint32_t> crcs = region::CrcsOf(*bytes);
      told.set_parity_bytes(bytes->size());
      told.mutable_parity_crc()->Assign(crcs.begin(), crcs.end());
    }
    const uint64_t begin = request.first_chunk() * TestGroup::kChunk;
    const uint64_t there = region::CrcsOf(*bytes).size();
    if (request.first_chunk() >= there || request.chunks() > there - request.first_chunk())
      return Error(ErrorCode::INVALID_ARGUMENT, "no such chunks");
    const uint64_t end = std::min<uint64_t>(begin + request.chunks() * TestGroup::kChunk, bytes->size());
    const auto at = bytes->begin() + static_cast<ptrdiff_t>(begin);
    served[++last_slot] = TestBytes(at, at + static_cast<ptrdiff_t>(end - begin));
    told.set_token(std::string(16, 't'));
    told.set_slot(last_slot);
    return told;
  }

  [[nodiscard]] TransferPtr Take() {
    TransferPtr transfer = transfers.front();
    transfers.pop_front();
    return transfer;
  }
  [[nodiscard]] static absl::Status Bring(const Transfer& transfer, uint32_t chunk) {
    const size_t at = chunk * TestGroup::kChunk;
    const size_t length = std::min<size_t>(TestGroup::kChunk, transfer.bytes.size() - at);
    std::memcpy(transfer.target.bytes.data() + at, transfer.bytes.data() + at, length);
    return transfer.target.verified(chunk, Crc32c(0, transfer.bytes.data() + at, length));
  }
  // All of it, as the transport would.
  [[nodiscard]] absl::Status BringAll(const Transfer& transfer) const {
    if (transfer.cancelled) return Error(ErrorCode::CANCELLED, "cancelled here");
    if (breaks) {
      if (absl::Status broken = breaks(transfer); !broken.ok()) return broken;
    }
    for (uint32_t chunk = 0; chunk * TestGroup::kChunk < transfer.bytes.size(); ++chunk) {
      if (absl::Status wanted = Bring(transfer, chunk); !wanted.ok()) return wanted;
    }
    return absl::OkStatus();
  }
  void Deliver() {
    const TransferPtr transfer = Take();
    if (!transfer->gone) transfer->done(BringAll(*transfer));
  }

  const TestGroup& group;
  std::function<std::optional<absl::StatusOr<v1::DescribeResponse>>(const Question&)> says;
  std::function<absl::Status(const Transfer&)> breaks;
  std::deque<Question> questions;
  std::deque<TransferPtr> transfers;
  std::map<uint32_t, TestBytes> served;
  std::map<std::string, int> asked;
  uint32_t last_slot = 0;
  uint64_t moved = 0;
  int moves = 0;  // that exist

 private:
  struct Move final : transport::CopyMove {
    Move(TransferPtr of, int* count) : transfer(std::move(of)), moves(count) { ++*moves; }
    ~Move() override {
      transfer->gone = true;
      --*moves;
    }
    absl::Status ChunkReady(uint32_t, uint32_t) override { return absl::OkStatus(); }
    void Cancel() override { transfer->cancelled = true; }
    [[nodiscard]] uint64_t Progress() const override { return 0; }
    [[nodiscard]] bool WaitsForOthers() const override { return false; }
    TransferPtr transfer;
    int* moves;
  };
};

// One rank of a group is rebuilt on agent `self`.
struct ParityRestore {
  ParityRestore(const erasure::Shape& shape, Rank of, std::string self, std::set<Rank> others_lost = {},
                uint64_t memory = kMiB)
      : group(shape), rank(of), agents(group) {
    lost = std::move(others_lost);
    lost.insert(rank);
    RebuildEnds ends{*loop,
                     clock,
                     work,
                     {std::move(self), "gpt", 1000, rank},
                     [this] { return linked ? &agents : nullptr; },
                     [this](Rank whose, const SnapshotId& id) { return OwnImage(whose, id); },
                     [this](const ParityPlace& place, const SnapshotId& id) { return OwnParity(place, id); },
                     [] { return AttemptId{2}; },
                     [this](const SnapshotId&) { return std::make_unique<FakeStoredCopy>(storage); },
                     memory};
    fetch = std::make_unique<ParityFetch>(std::move(ends));
    region::LayoutSet& set = Layout(rank, group.images[rank].size());
    into = {set.head(), set.FileOf(0)};
  }

  region::LayoutSet& Layout(Rank of, uint64_t bytes) {
    region::LayoutSpec spec = region::TestSpec((bytes + 4095) / 4096 * 4096);
    spec.rank = of;
    spec.world = 64;
    return region::AddLayout(**(*region->OpenJob("gpt", 1000))->OpenRank(of), spec);
  }
  absl::StatusOr<HeldSnapshot> OwnImage(Rank whose, const SnapshotId& id) {
    ++own_images;
    region::LayoutSet& set = Layout(whose, group.images[whose].size());
    EXPECT_TRUE(set.FileOf(0)->Write(0, group.images[whose]).ok());
    auto record = region::MakeRecord(set.head(), region::HeadOf(id.step, 1), region::CrcsOf(group.images[whose]));
    EXPECT_TRUE(record.ok()) << record.status();
    return HeldSnapshot{set.head(), std::make_shared<region::SlotRecord>(*record), set.FileOf(0), nullptr};
  }
  absl::StatusOr<HeldParity> OwnParity(const ParityPlace& place, const SnapshotId&) {
    ++own_parities;
    const TestBytes& bytes = group.parity.at({place.stripe, place.row});
    HeldParity held{
        bytes.size(), region::CrcsOf(bytes), Layout(40 + place.stripe, bytes.size()).FileOf(0), nullptr, {}};
    EXPECT_TRUE(held.file->Write(0, bytes).ok());
    for (const Rank of : place.DataRanks()) {
      const v1::DescribeResponse about = group.About(of);
      v1::ParityContents::Member* member = held.contents.add_members();
      member->set_rank(of);
      member->set_world_size(about.world_size());
      *member->mutable_layout() = about.layout();
      *member->mutable_record() = about.record();
    }
    return held;
  }

  // What is not lost is where it was, or `everything_on`.
  [[nodiscard]] std::shared_ptr<const v1::ParitySources> Sources(const std::string& everything_on = "") const {
    auto sources = std::make_shared<v1::ParitySources>();
    for (Rank of = 0; of < group.shape.members(); ++of) {
      sources->add_ranks(of);
      if (lost.count(of) != 0) continue;
      v1::ParitySources::Data* data = sources->add_data();
      data->set_rank(of);
      data->add_agents(everything_on.empty() ? AgentOf(of) : everything_on);
    }
    sources->set_parity(group.shape.parity);
    for (const auto& [at, bytes] : group.parity) {
      const Rank holder = erasure::ParityHolder(group.shape, at.first, at.second);
      if (lost.count(holder) != 0) continue;
      v1::ParitySources::Block* block = sources->add_blocks();
      block->set_stripe(at.first);
      block->set_row(at.second);
      block->set_agent(everything_on.empty() ? AgentOf(holder) : everything_on);
    }
    return sources;
  }
  void Begin(const std::string& everything_on = "") {
    fetch->Fetch({TestGroup::kId, Sources(everything_on)}, into,
                 [this](const absl::StatusOr<v1::CopyRecord>& record) { ended.push_back(record); });
  }
  void Settle() {
    for (int i = 0; i < 6; ++i) ASSERT_TRUE(loop->RunOnce(Nanos(0)).ok());
  }
  // Until nothing more happens.
  void Run() {
    for (int turn = 0; turn < 10000; ++turn) {
      Settle();
      if (!agents.questions.empty()) {
        agents.Answer();
      } else if (!agents.transfers.empty()) {
        agents.Deliver();
      } else {
        return;
      }
    }
    FAIL() << "it never ends";
  }
  void Answers() {
    Settle();
    while (!agents.questions.empty()) {
      agents.Answer();
      Settle();
    }
  }
  [[nodiscard]] absl::Status Status() const {
    return ended.size() == 1 ? ended[0].status() : Error(ErrorCode::INTERNAL, absl::StrCat(ended.size(), " ends"));
  }
  [[nodiscard]] bool Whole() const {
    TestBytes bytes(group.images[rank].size());
    return into.file->Read(0, bytes).ok() && bytes == group.images[rank];
  }

  FakeClock clock;
  std::unique_ptr<Loop> loop = *Loop::Create(clock, 1024);
  InlineExecutor work;
  region::TempDir dir;
  std::unique_ptr<region::Region> region = region::OpenRegion(dir.region());
  TestGroup group;
  Rank rank;
  std::set<Rank> lost;
  AskedOfStorage storage;
  TestAgents agents;
  bool linked = true;
  int own_images = 0;
  int own_parities = 0;
  CopyFetch::Into into;
  std::vector<absl::StatusOr<v1::CopyRecord>> ended;
  std::unique_ptr<ParityFetch> fetch;
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_PARITY_TEST_UTIL_H_
