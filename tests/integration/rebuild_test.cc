// The rebuild matrix: a job of one rank on each of four nodes; every set of up to m + 1 of them is lost, where the
// scheme outlives m, each in several ways. The job comes back from memory exactly when every rank's part is left
// somewhere, else from storage, else with an error that says so; nobody hangs.
//
// A subset by day, all of it by night ($CKPTD_NIGHTLY).
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <set>

#include "tests/integration/copies_fixture.h"

namespace ckptd::harness {
namespace {

constexpr size_t kNodes = 4;

using NodeSet = std::set<size_t>;

// How nodes keep each other's snapshots.
struct Scheme {
  const char* name;
  std::map<std::string, std::string> settings;
  size_t outlives;  // losses, whichever they are
  // Whether a rank's part is left, of which these nodes had something (its own among them).
  std::function<bool(const NodeSet& places, const NodeSet& lost)> is_left;
  bool parity = false;  // nobody has another rank's part: all four are one code
};

bool AnyCopyIsLeft(const NodeSet& places, const NodeSet& lost) {
  return !std::includes(lost.begin(), lost.end(), places.begin(), places.end());
}

// A rank's own node is left, or few enough are lost.
std::function<bool(const NodeSet& places, const NodeSet& lost)> ByCode(size_t parity) {
  return [parity](const NodeSet& places, const NodeSet& lost) {
    return AnyCopyIsLeft(places, lost) || lost.size() <= parity;
  };
}

std::map<std::string, std::string> ParitySettings(const char* data, const char* parity) {
  return {{"peers.data", data}, {"peers.parity", parity}, {"region.chunk_bytes", Quoted("64 KiB")}};
}

const std::vector<Scheme>& Schemes() {
  static const auto* const schemes = new std::vector<Scheme>{
      {"copies2", {{"peers.copies", "2"}}, 1, AnyCopyIsLeft},
      {"copies3", {{"peers.copies", "3"}}, 2, AnyCopyIsLeft},
      {"xor", ParitySettings("3", "1"), 1, ByCode(1), true},
      {"rs22", ParitySettings("2", "2"), 2, ByCode(2), true},
  };
  return *schemes;
}

enum class Way { kClean, kDuringSave, kDuringRebuild, kCorruptSurvivor, kStaleSurvivor, kSlowSurvivor };
constexpr const char* kWays[] = {"clean",          "during_save",  "during_rebuild", "corrupt_survivor",
                                 "stale_survivor", "slow_survivor"};

struct Cell {
  size_t scheme = 0;
  NodeSet lost;
  Way way = Way::kClean;
  bool stored = false;  // storage has steps too
};

std::string NameOf(const Cell& cell) {
  std::string name = std::string(Schemes()[cell.scheme].name) + "_" + kWays[static_cast<size_t>(cell.way)] + "_lost";
  for (const size_t node : cell.lost) name += static_cast<char>('A' + node);
  return name + (cell.stored ? "_stored" : "");
}

std::vector<Cell> AllCells() {
  std::vector<Cell> cells;
  for (size_t scheme = 0; scheme < Schemes().size(); ++scheme) {
    for (unsigned mask = 1; mask < 1u << kNodes; ++mask) {
      NodeSet lost;
      for (size_t node = 0; node < kNodes; ++node) {
        if ((mask >> node & 1) != 0) lost.insert(node);
      }
      if (lost.size() > Schemes()[scheme].outlives + 1) continue;
      for (size_t way = 0; way < std::size(kWays); ++way)
        cells.push_back(
            {scheme, lost, static_cast<Way>(way), lost.size() > Schemes()[scheme].outlives && mask % 2 == 0});
    }
  }
  return cells;
}

std::vector<Cell> Cells() {
  if (ByNight()) return AllCells();
  return {{0, {1}, Way::kClean, false},           {0, {0, 1}, Way::kClean, false},
          {0, {0, 2}, Way::kClean, false},        {0, {0, 3}, Way::kClean, true},
          {0, {0}, Way::kDuringSave, false},      {0, {2}, Way::kDuringRebuild, false},
          {0, {3}, Way::kCorruptSurvivor, false}, {0, {1}, Way::kSlowSurvivor, false},
          {1, {0, 1}, Way::kClean, false},        {1, {1, 2, 3}, Way::kClean, true},
          {1, {2}, Way::kStaleSurvivor, false},   {2, {3}, Way::kClean, false},
          {2, {0, 2}, Way::kClean, true},         {2, {1}, Way::kCorruptSurvivor, true},
          {3, {1, 2}, Way::kDuringSave, false},   {3, {0}, Way::kCorruptSurvivor, false},
          {3, {2}, Way::kSlowSurvivor, false}};
}

struct Tally {
  int cells = 0, memory = 0, storage = 0, refused = 0;
  double longest = 0;
};

class RebuildTest : public CopiesTest, public testing::WithParamInterface<Cell> {
 protected:
  static void TearDownTestSuite() {
    for (const auto& [name, tally] : Tallies()) {
      std::printf(
          "rebuild %s: %d cells as predicted, %d from memory, %d from storage, %d refused; a restore took %.1f s "
          "at most\n",
          name.c_str(), tally.cells, tally.memory, tally.storage, tally.refused, tally.longest);
    }
  }
  static std::map<std::string, Tally>& Tallies() {
    static auto* const tallies = new std::map<std::string, Tally>;
    return *tallies;
  }
  [[nodiscard]] static const Scheme& scheme() { return Schemes()[GetParam().scheme]; }
  [[nodiscard]] static const NodeSet& lost() { return GetParam().lost; }

  void MakeNodes() {
    std::map<std::string, std::string> settings = scheme().settings;
    settings["agent.decide_timeout"] = Quoted(GetParam().way == Way::kSlowSurvivor ? "8s" : "2s");
    if (!GetParam().stored) settings["durability.flush_every"] = "1000000";
    // A step that is durable need not be protected any more, and the disk may be faster than two copies.
    if (GetParam().stored) settings["durability.flush_every"] = "4";
    ASSERT_NO_FATAL_FAILURE(Make(kNodes, std::move(settings)));
  }
  // Where something of each rank lies.
  std::vector<NodeSet> Places() {
    std::vector<NodeSet> places;
    for (size_t rank = 0; rank < kNodes; ++rank) {
      NodeSet& of = places.emplace_back(NodeSet{rank});
      for (size_t node = 0; node < kNodes; ++node) {
        if (!CopiesOf(node, rank).empty()) of.insert(node);
      }
    }
    return places;
  }
  std::vector<std::string> CopiesOf(size_t node, size_t rank) {
    return FilesWith(cluster_->node(node).region(), "peer-0000" + std::to_string(rank) + "/slot-");
  }
  void LoseThem() {
    for (const size_t node : lost()) LoseNode(node);
  }
  // Rank i on node where[i]: at home, or on one that is left.
  [[nodiscard]] static std::vector<size_t> NewHomes() {
    std::vector<size_t> left, where;
    for (size_t node = 0; node < kNodes; ++node) {
      if (lost().count(node) == 0) left.push_back(node);
    }
    for (size_t rank = 0; rank < kNodes; ++rank)
      where.push_back(lost().count(rank) == 0 ? rank : left[rank % left.size()]);
    return where;
  }
  // A node that is left and has a copy of the first lost rank, or parity of it; kNodes: there is none.
  static size_t Survivor(const std::vector<NodeSet>& places) {
    for (size_t node = 0; scheme().parity && node < kNodes; ++node) {
      if (lost().count(node) == 0) return node;
    }
    for (const size_t node : places[*lost().begin()]) {
      if (lost().count(node) == 0) return node;
    }
    return kNodes;
  }

  void Lose(Ranks& ranks, std::vector<NodeSet>& places);
  void StartRebuildAndLose();
  void Corrupt(std::vector<NodeSet>& places);
  enum class End { kMemory, kStorage, kRefused };
  [[nodiscard]] End Restart(const Ranks& before);
  void ExpectRefused(Child& rank);
  [[nodiscard]] static std::string LossOf(size_t rank);
  void ExpectEnd(bool left, End end, const Ranks& before);

  size_t slow_ = kNodes;
  size_t gone_ = 0;     // a rank of which nothing is left, if there is one
  size_t spoiled_ = 0;  // parity of so many nodes
  uint64_t promised_ = 0;
  uint64_t last_step_ = 0;  // of any trainer
  uint64_t step_ = 0;       // restored
};

INSTANTIATE_TEST_SUITE_P(Of, RebuildTest, testing::ValuesIn(Cells()),
                         [](const auto& cell) { return NameOf(cell.param); });

// `places` is what is left to count with.
void RebuildTest::Lose(Ranks& ranks, std::vector<NodeSet>& places) {
  const size_t survivor = Survivor(places);
  const Way way = GetParam().way;
  if (way == Way::kDuringSave) {
    ASSERT_TRUE(ranks[*lost().begin()]->WaitFor("SAVE")) << cluster_->Logs();
    LoseThem();
    return KillAll(ranks);
  }
  if (way == Way::kStaleSurvivor && survivor != kNodes) {
    kill(cluster_->node(survivor).agent()->pid(), SIGSTOP);
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(ranks[*lost().begin()]->WaitFor("STEP"));
    LoseThem();
    KillAll(ranks);
    kill(cluster_->node(survivor).agent()->pid(), SIGCONT);
    return;
  }
  if (way == Way::kDuringRebuild) {
    KillAll(ranks);
    return StartRebuildAndLose();
  }
  LoseThem();  // first: an agent whose trainer has ended would flush
  KillAll(ranks);
  if (way == Way::kCorruptSurvivor) Corrupt(places);
  if (way == Way::kSlowSurvivor) slow_ = survivor;
}

// The job starts with every rank on another node, so that all parts are on their way when the nodes go.
void RebuildTest::StartRebuildAndLose() {
  Ranks moved = cluster_->Train({1, 2, 3, 0}, kForever);
  for (int i = 0; i < 100 && cluster_->Logs().find("op=copy.fetched") == std::string::npos; ++i) usleep(20'000);
  LoseThem();
  KillAll(moved);
  last_step_ = std::max(last_step_, LastOf(moved, "STEP"));
}

// What the survivor has of the first lost rank.
void RebuildTest::Corrupt(std::vector<NodeSet>& places) {
  const size_t rank = *lost().begin();
  const size_t survivor = Survivor(places);
  if (survivor == kNodes) return;
  if (scheme().parity) {
    for (const std::string& file : FilesWith(cluster_->node(survivor).region(), "parity-"))
      if (file.find("/slot-") != std::string::npos) FlipByte(cluster_->node(survivor).region() + "/" + file, 5000);
    spoiled_ = 1;
    return;
  }
  for (const std::string& file : CopiesOf(survivor, rank))
    FlipByte(cluster_->node(survivor).region() + "/" + file, 5000);
  places[rank].erase(survivor);
}

// Starts the job on what is left: what came of it, which is the same for every rank and right bit for bit.
RebuildTest::End RebuildTest::Restart(const Ranks& before) {
  last_step_ = std::max(last_step_, LastOf(before, "STEP"));
  const std::string line = LineTo(last_step_ + 30);
  const std::vector<size_t> where = NewHomes();
  Ranks ranks = cluster_->Train(where, line);
  if (slow_ != kNodes) {
    kill(cluster_->node(slow_).agent()->pid(), SIGSTOP);
    usleep(1'000'000);
    kill(cluster_->node(slow_).agent()->pid(), SIGCONT);
  }
  if (!ranks[0]->WaitFor("RESTORED", 2 * kLong)) {
    for (auto& rank : ranks) ExpectRefused(*rank);
    return End::kRefused;
  }
  const Rest rest = Finish(ranks, where, line);
  step_ = rest.step;
  for (const std::string& said : ranks[0]->lines()) {
    const bool skipped = said.rfind("SKIPPED", 0) == 0 && GetParam().way == Way::kClean;
    EXPECT_TRUE(!skipped || Field(said, "code") == "NOT_FOUND") << "nothing is damaged: " << said;
  }
  const bool stored = std::count(rest.sources.begin(), rest.sources.end(), kStorage) != 0;
  return stored ? End::kStorage : End::kMemory;
}

// In time, and with a sentence that names who is missing, and what went with them.
void RebuildTest::ExpectRefused(Child& rank) {
  constexpr char kSentence[] =
      "no step can be restored, but it is not certain that none exists; no answer from agents node-";
  EXPECT_EQ(rank.Wait(), 1) << cluster_->Logs();
  EXPECT_NE(rank.Errors().find(kSentence), std::string::npos) << rank.Errors() << cluster_->Logs();
  if (GetParam().way != Way::kClean) return;
  EXPECT_NE(rank.Errors().find(LossOf(gone_)), std::string::npos) << rank.Errors() << cluster_->Logs();
}

// What is to be said of a rank of which nothing is left.
std::string RebuildTest::LossOf(size_t rank) {
  if (scheme().parity) return "group of ranks 0 1 2 3 (parity " + std::to_string(scheme().outlives) + ") lost ranks ";
  const std::string holder = scheme().outlives == 1 ? " and its holder node-" : " and its holders node-";
  return "rank " + std::to_string(rank) + ": its node " + Cluster::NameOf(rank) + holder;
}

// `left`: by arithmetic, every rank's part.
void RebuildTest::ExpectEnd(bool left, End end, const Ranks& before) {
  if (left) {
    // A step on storage may be newer than the newest protected one: one that was put there, or that agents flushed
    // whose trainers had ended.
    const bool newer = GetParam().way == Way::kDuringRebuild && step_ > promised_;
    EXPECT_TRUE(end == End::kMemory || (end == End::kStorage && (GetParam().stored || newer))) << cluster_->Logs();
    EXPECT_GE(step_, promised_) << cluster_->Logs();
    return;
  }
  // What was on its way to new homes may be left there; and agents whose trainers have ended flush what they captured.
  if (GetParam().way == Way::kDuringRebuild) return;
  EXPECT_EQ(end, GetParam().stored ? End::kStorage : End::kRefused) << cluster_->Logs();
  if (GetParam().stored) {
    EXPECT_GE(step_, LastOf(before, "DURABLE")) << cluster_->Logs();
  }
}

TEST_P(RebuildTest, ComesBackExactlyWhenEveryPartIsLeft) {
  ASSERT_NO_FATAL_FAILURE(MakeNodes());
  Ranks ranks = TrainUntilProtected({0, 1, 2, 3});
  ASSERT_FALSE(HasFailure());
  if (GetParam().stored) {
    for (auto& rank : ranks) ASSERT_TRUE(rank->Last("DURABLE") != 0 || rank->WaitFor("DURABLE")) << cluster_->Logs();
  }
  std::vector<NodeSet> places = Places();
  const size_t wanted = scheme().parity ? 1 : scheme().outlives + 1;
  for (const NodeSet& of : places) ASSERT_EQ(of.size(), wanted) << "a rank's part is on too few nodes";
  ASSERT_NO_FATAL_FAILURE(Lose(ranks, places));
  promised_ = LastOf(ranks, "PROTECTED");
  const auto gone =
      std::find_if(places.begin(), places.end(), [](const NodeSet& of) { return !scheme().is_left(of, lost()); });
  gone_ = static_cast<size_t>(gone - places.begin());
  const bool left = gone == places.end() && lost().size() + spoiled_ <= std::max(scheme().outlives, lost().size());
  const bool corrupt = GetParam().way == Way::kCorruptSurvivor;
  EXPECT_TRUE(left || corrupt || lost().size() > scheme().outlives);
  const auto begin = std::chrono::steady_clock::now();
  const End end = Restart(ranks);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  ExpectEnd(left, end, ranks);
  if (HasFailure()) return;
  Tally& tally = Tallies()[std::string(scheme().name) + ", " + kWays[static_cast<size_t>(GetParam().way)]];
  ++tally.cells;
  ++(end == End::kMemory ? tally.memory : end == End::kStorage ? tally.storage : tally.refused);
  tally.longest = std::max(tally.longest, took.count());
}

}  // namespace
}  // namespace ckptd::harness
