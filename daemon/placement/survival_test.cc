// The tables of the papers and of the project's references, to the digit; enumeration and simulation beside them.
#include "daemon/placement/survival.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "absl/strings/str_format.h"
#include "daemon/base/errors.h"
#include "daemon/placement/placement_test_util.h"

namespace ckptd::placement {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Scheme Group(uint32_t copies) { return Scheme::Copies(Kind::kGroup, copies); }
Scheme Ring(uint32_t copies) { return Scheme::Copies(Kind::kRing, copies); }
double Survival(const Scheme& scheme, size_t nodes, size_t lost) {
  auto survival = SurvivalOfLosses(MustPlace(scheme, nodes), lost);
  EXPECT_TRUE(survival.ok()) << survival.status();
  return *survival;
}

double AtProbability(const Scheme& scheme, size_t nodes, double p) {
  auto survival = SurvivalAtProbability(MustPlace(scheme, nodes), p);
  EXPECT_TRUE(survival.ok()) << survival.status();
  return *survival;
}

std::string Percent(double value) { return absl::StrFormat("%.4f", value * 100); }

double Choose(size_t n, size_t k) {
  double out = 1;
  for (size_t i = 1; i <= k; ++i) out = out * static_cast<double>(n - i + 1) / static_cast<double>(i);
  return out;
}

struct GeminiRow {
  size_t nodes;
  uint32_t copies;
  size_t lost;
  const char* ring;
  const char* group;  // empty: copies do not divide nodes
  const char* mixed;
  const char* bound;
};
constexpr GeminiRow kGemini[] = {
    {4, 2, 2, "33.3333", "66.6667", "66.6667", "66.6667"},
    {8, 2, 2, "71.4286", "85.7143", "85.7143", "85.7143"},
    {8, 2, 3, "28.5714", "57.1429", "57.1429", "57.1429"},
    {8, 2, 4, "2.8571", "22.8571", "22.8571", "14.2857"},
    {16, 2, 2, "86.6667", "93.3333", "93.3333", "93.3333"},
    {16, 2, 3, "62.8571", "80.0000", "80.0000", "80.0000"},
    {16, 2, 4, "36.2637", "61.5385", "61.5385", "60.0000"},
    {16, 4, 4, "99.1209", "99.7802", "99.7802", "99.7802"},
    {16, 4, 5, "95.9707", "98.9011", "98.9011", "98.9011"},
    {9, 3, 3, "89.2857", "96.4286", "96.4286", "96.4286"},
    {12, 3, 3, "94.5455", "98.1818", "98.1818", "98.1818"},
    {15, 3, 3, "96.7033", "98.9011", "98.9011", "98.9011"},
    {5, 2, 2, "50.0000", "", "60.0000", ""},
    {7, 2, 2, "66.6667", "", "76.1905", ""},
    {15, 2, 2, "85.7143", "", "91.4286", ""},
};

// CHK-9a; the bound is Gemini's Corollary.
TEST(Gemini, RecoveryProbabilities) {
  for (const GeminiRow& row : kGemini) {
    SCOPED_TRACE(absl::StrCat(row.nodes, " ", row.copies, " ", row.lost));
    EXPECT_EQ(Percent(Survival(Ring(row.copies), row.nodes, row.lost)), row.ring);
    EXPECT_EQ(Percent(Survival(Mixed(row.copies), row.nodes, row.lost)), row.mixed);
    if (*row.group == 0) continue;
    EXPECT_EQ(Percent(Survival(Group(row.copies), row.nodes, row.lost)), row.group);
    const auto nodes = static_cast<double>(row.nodes);
    const double bound =
        1 - nodes * Choose(row.nodes - row.copies, row.lost - row.copies) / (row.copies * Choose(row.nodes, row.lost));
    EXPECT_EQ(Percent(std::max(0.0, bound)), row.bound);
  }
}

// The same table by asking every set, and by asking random ones.
TEST(Gemini, EnumerationAndSimulationAgree) {
  for (const GeminiRow& row : kGemini) {
    for (const Scheme& scheme : {Ring(row.copies), Mixed(row.copies)}) {
      SCOPED_TRACE(absl::StrCat(ToString(scheme), " of ", row.nodes, ", lost ", row.lost));
      const Placement placement = MustPlace(scheme, row.nodes);
      const char* expected = scheme.kind == Kind::kRing ? row.ring : row.mixed;
      auto all = EnumerateLosses(placement, row.lost);
      ASSERT_TRUE(all.ok()) << all.status();
      EXPECT_EQ(Percent(static_cast<double>(all->survived) / static_cast<double>(all->total)), expected);
      auto some = SimulateLosses(placement, row.lost, 100'000, 2026);
      ASSERT_TRUE(some.ok()) << some.status();
      const double exact = *SurvivalOfLosses(placement, row.lost);
      const double deviation = std::sqrt(exact * (1 - exact) / 100'000);
      EXPECT_NEAR(static_cast<double>(some->survived) / 100'000, exact, 5 * deviation);
    }
  }
}

// survived / total as the exact fraction.
std::string Fraction(const Scheme& scheme, size_t nodes, size_t lost) {
  const Counted counted = *EnumerateLosses(MustPlace(scheme, nodes), lost);
  const uint64_t common = std::gcd(counted.survived, counted.total);
  const double fraction = static_cast<double>(counted.survived) / static_cast<double>(counted.total);
  EXPECT_DOUBLE_EQ(Survival(scheme, nodes, lost), fraction);
  return absl::StrCat(counted.survived / common, "/", counted.total / common);
}

TEST(Gemini, ExactFractions) {
  EXPECT_EQ(Fraction(Ring(2), 16, 2), "13/15");
  EXPECT_EQ(Fraction(Group(2), 16, 2), "14/15");
  EXPECT_EQ(Fraction(Ring(2), 16, 3), "22/35");
  EXPECT_EQ(Fraction(Group(2), 16, 3), "4/5");
  EXPECT_EQ(Fraction(Ring(2), 16, 4), "33/91");
  EXPECT_EQ(Fraction(Group(2), 16, 4), "8/13");
  EXPECT_EQ(Fraction(Ring(2), 16, 5), "2/13");
  EXPECT_EQ(Fraction(Group(2), 16, 5), "16/39");
}

// CHK-9f: of the 28 pairs of 8.
TEST(Gemini, PairsOfEight) {
  EXPECT_EQ(*EnumerateLosses(MustPlace(Group(2), 8), 2), (Counted{24, 28}));
  EXPECT_EQ(*EnumerateLosses(MustPlace(Ring(2), 8), 2), (Counted{20, 28}));
}

TEST(Gemini, PairsInClosedForm) {
  for (size_t lost = 2; lost <= 64; ++lost) {
    EXPECT_NEAR(Survival(Group(2), 128, lost),
                Choose(64, lost) * std::pow(2, static_cast<double>(lost)) / Choose(128, lost), 1e-12);
  }
  EXPECT_EQ(Survival(Group(2), 128, 65), 0);
}

// CHK-9b: how far mixed is below the best that any placement could be, 1 - ceil(N/m) / C(N, m); at most
// (2m - 3) / C(N, m).
TEST(Gemini, TheGapToTheUpperBound) {
  struct Row {
    size_t nodes;
    uint32_t copies;
    const char* gap;
  };
  for (const Row& row :
       {Row{5, 2, "1/10"}, Row{7, 2, "1/21"}, Row{15, 2, "1/105"}, Row{17, 2, "1/136"}, Row{10, 3, "1/60"},
        Row{11, 3, "1/55"}, Row{13, 4, "3/715"}, Row{15, 4, "1/273"}, Row{14, 5, "1/286"}}) {
    SCOPED_TRACE(absl::StrCat(row.nodes, " ", row.copies));
    const Counted counted = *EnumerateLosses(MustPlace(Mixed(row.copies), row.nodes), row.copies);
    const uint64_t failing = counted.total - counted.survived;
    const uint64_t gap = failing - (row.nodes + row.copies - 1) / row.copies;
    const uint64_t common = std::gcd(gap, counted.total);
    EXPECT_EQ(absl::StrCat(gap / common, "/", counted.total / common), row.gap);
    EXPECT_LE(gap, 2 * row.copies - 3);
  }
}

// The fewest pairs {i, holder of i} of any placement of N with two copies; balanced: everybody holds one.
size_t FewestPairs(size_t nodes, bool balanced, std::vector<size_t>* holders) {
  if (holders->size() == nodes) {
    std::set<std::pair<size_t, size_t>> pairs;
    for (size_t i = 0; i < nodes; ++i) pairs.insert(std::minmax(i, (*holders)[i]));
    return pairs.size();
  }
  size_t fewest = nodes;
  for (size_t holder = 0; holder < nodes; ++holder) {
    if (holder == holders->size()) continue;
    if (balanced && std::count(holders->begin(), holders->end(), holder) != 0) continue;
    holders->push_back(holder);
    fewest = std::min(fewest, FewestPairs(nodes, balanced, holders));
    holders->pop_back();
  }
  return fewest;
}

TEST(Gemini, NoBalancedPlacementIsBetter) {
  std::vector<size_t> none;
  EXPECT_EQ(FewestPairs(4, false, &none), 2u);  // 2/3
  EXPECT_EQ(FewestPairs(5, false, &none), 3u);  // 7/10
  EXPECT_EQ(FewestPairs(7, false, &none), 4u);  // 17/21
  for (size_t nodes : {4, 5, 7}) {
    const size_t fewest = FewestPairs(nodes, true, &none);
    EXPECT_DOUBLE_EQ(Survival(Mixed(2), nodes, 2), 1 - static_cast<double>(fewest) / Choose(nodes, 2));
  }
  EXPECT_EQ(FewestPairs(5, true, &none), 4u);  // 3/5
  EXPECT_EQ(FewestPairs(7, true, &none), 5u);  // 16/21
}

// CHK-7c.
TEST(Reft, SurvivalAtAProbability) {
  struct Row {
    size_t nodes;
    uint32_t group;
    double p;
    const char* none;
    const char* raim5;
    const char* pairs;
  };
  for (const Row& row :
       {Row{4, 4, .01, "0.960596", "0.99940797", "0.99980001"}, Row{8, 4, .01, "0.922745", "0.99881629", "0.99960006"},
        Row{64, 4, .001, "0.937975", "0.99990413", "0.99996800"},
        Row{64, 8, .001, "0.937975", "0.99977692", "0.99996800"},
        Row{128, 8, .001, "0.879797", "0.99955388", "0.99993600"},
        Row{512, 8, .001, "0.599142", "0.99821672", "0.99974403"}}) {
    SCOPED_TRACE(absl::StrCat(row.nodes, " ", row.group));
    EXPECT_EQ(absl::StrFormat("%.6f", AtProbability({}, row.nodes, row.p)), row.none);
    EXPECT_EQ(absl::StrFormat("%.8f", AtProbability(Scheme::Xor(row.group - 1), row.nodes, row.p)), row.raim5);
    EXPECT_EQ(absl::StrFormat("%.8f", AtProbability(Group(2), row.nodes, row.p)), row.pairs);
    // S_RAIM5 = [(1-p)^n + n p (1-p)^(n-1)]^(N/n); pairs (1 - p^2)^(N/2)
    const double n = row.group;
    const double one = std::pow(1 - row.p, n) + n * row.p * std::pow(1 - row.p, n - 1);
    EXPECT_NEAR(AtProbability(Scheme::Xor(row.group - 1), row.nodes, row.p),
                std::pow(one, static_cast<double>(row.nodes) / n), 1e-13);
    EXPECT_NEAR(AtProbability(Group(2), row.nodes, row.p),
                std::pow(1 - row.p * row.p, static_cast<double>(row.nodes) / 2), 1e-13);
  }
}

// CHK-7c, the line below its table, as it rounds.
TEST(Reft, ExactlyKLosses) {
  auto line = [](size_t nodes, uint32_t group) {
    std::string out;
    for (size_t lost = 1; lost <= 3; ++lost) {
      const double survival = Survival(Scheme::Xor(group - 1), nodes, lost);
      const size_t groups = nodes / group;
      const double closed = Choose(groups, lost) * std::pow(group, static_cast<double>(lost)) / Choose(nodes, lost);
      EXPECT_NEAR(survival, lost <= groups ? closed : 0, 1e-12);
      absl::StrAppendFormat(&out, "%s%.5g", lost == 1 ? "" : "/", std::round(survival * 1e5) / 1e3);
    }
    return out;
  };
  EXPECT_EQ(line(16, 4), "100/80/45.714");
  EXPECT_EQ(line(16, 2), "100/93.333/80");
  EXPECT_EQ(line(16, 8), "100/53.333/0");
  EXPECT_EQ(line(64, 8), "100/88.889/68.817");
}

TEST(Reft, AMillionRandomLosses) {
  for (size_t lost : {2, 3}) {
    const Placement placement = MustPlace(Scheme::Xor(7), 64);
    const Counted counted = *SimulateLosses(placement, lost, 1'000'000, 7);
    EXPECT_NEAR(static_cast<double>(counted.survived) / 1e6, *SurvivalOfLosses(placement, lost), 0.0015);
  }
}

// reliability.md 3: survival by scheme, exactly k of N.
TEST(Table, SchemesSideBySide) {
  struct Row {
    size_t nodes;
    size_t lost;
    double pairs, ring, three, xor_7_1, rs_6_2, rs_14_2;
    double within;
  };
  for (const Row& row :
       {Row{16, 2, .933, .867, 1, .533, 1, 1, 6e-4}, Row{16, 3, .800, .629, .989, 0, .800, 0, 6e-4},
        Row{64, 2, .984, .968, 1, .889, 1, 1, 6e-4}, Row{64, 4, .906, .819, .998, .451, .960, .819, 6e-4},
        Row{128, 3, .976, .953, .9999, .840, .997, .987, 6e-4}, Row{128, 8, .793, .627, .993, .151, .876, .543, 6e-4},
        Row{1024, 4, .994, .988, 1, .959, .9998, .999, 6e-4},
        Row{1024, 8, .973, .946, .9999, .822, .998, .989, 6e-4}}) {
    SCOPED_TRACE(absl::StrCat(row.nodes, " ", row.lost));
    EXPECT_NEAR(Survival(Group(2), row.nodes, row.lost), row.pairs, row.within);
    EXPECT_NEAR(Survival(Ring(2), row.nodes, row.lost), row.ring, row.within);
    EXPECT_NEAR(Survival(Group(3), row.nodes / 3 * 3, row.lost), row.three, row.within);
    EXPECT_NEAR(Survival(Scheme::Xor(7), row.nodes, row.lost), row.xor_7_1, row.within);
    EXPECT_NEAR(Survival(Scheme::ReedSolomon(6, 2), row.nodes, row.lost), row.rs_6_2, row.within);
    EXPECT_NEAR(Survival(Scheme::ReedSolomon(14, 2), row.nodes, row.lost), row.rs_14_2, row.within);
  }
}

// Any scheme, any number of losses: the counts are the enumerated ones, and summed over all numbers of losses they
// give the survival at a probability.
TEST(Survival, CountsAndProbabilitiesAgreeWithEverySet) {
  Engine engine(42);
  for (int trial = 0; trial < 150; ++trial) {
    const Scheme scheme = RandomScheme(engine);
    const auto members = RandomMembers(engine, scheme, 12);
    const Placement placement = *Place(scheme, members);
    SCOPED_TRACE(absl::StrCat(trial, ": ", ToString(scheme), " of ", members.size()));
    const double p = static_cast<double>(Draw(engine, 1, 9)) / 10;
    double sum = 0;
    for (size_t lost = 0; lost <= members.size(); ++lost) {
      const Counted counted = *EnumerateLosses(placement, lost);
      ASSERT_EQ(counted.total, static_cast<uint64_t>(std::llround(Choose(members.size(), lost))));
      ASSERT_NEAR(*SurvivalOfLosses(placement, lost),
                  static_cast<double>(counted.survived) / static_cast<double>(counted.total), 1e-12)
          << lost;
      sum += static_cast<double>(counted.survived) * std::pow(p, static_cast<double>(lost)) *
             std::pow(1 - p, static_cast<double>(members.size() - lost));
    }
    ASSERT_NEAR(*SurvivalAtProbability(placement, p), sum, 1e-12);
  }
}

// A change of members may leave a ring of any shape; it counts as it stands.
TEST(Survival, OfAPlacementThatWasRearranged) {
  Engine engine(43);
  for (int trial = 0; trial < 60; ++trial) {
    const Scheme scheme = Mixed(static_cast<uint32_t>(Draw(engine, 2, 4)));
    auto members = RandomMembers(engine, scheme, 11);
    const Placement before = *Place(scheme, members);
    members.push_back(RandomMember(engine, 100));
    const Placement after = *Rearrange(before, members);
    for (size_t lost = 1; lost <= 5 && lost <= members.size(); ++lost) {
      const Counted counted = *EnumerateLosses(after, lost);
      ASSERT_NEAR(*SurvivalOfLosses(after, lost),
                  static_cast<double>(counted.survived) / static_cast<double>(counted.total), 1e-12);
    }
  }
}

TEST(Survival, OfTheLargestMembership) {
  EXPECT_NEAR(Survival(Group(2), 10'000, 2), 1 - 5000 / Choose(10'000, 2), 1e-13);
  EXPECT_NEAR(Survival(Ring(2), 10'000, 2), 1 - 10'000 / Choose(10'000, 2), 1e-13);
  EXPECT_EQ(Survival(Ring(3), 10'000, 6'667), 0) << "2 of 3 may be lost, and no more";
  EXPECT_GT(Survival(Ring(3), 10'000, 5'000), 0);
  EXPECT_EQ(Survival(Scheme::ReedSolomon(6, 2), 10'000, 2'501), 0) << "more than 2 in each of 1250 groups";
  EXPECT_GT(Survival(Scheme::ReedSolomon(6, 2), 10'000, 100), 0.9);
  EXPECT_GT(AtProbability(Ring(3), 10'000, 1e-3), 1 - 1e-5);
  EXPECT_EQ(AtProbability(Ring(3), 10'000, 0), 1);
  EXPECT_EQ(AtProbability(Ring(3), 10'000, 1), 0);
}

TEST(Unrecoverable, NamesThoseWhoseSnapshotsAreGone) {
  const Placement copies{Mixed(2), {{"a", "b"}, {"c", "d", "e"}}};
  EXPECT_THAT(*Unrecoverable(copies, {"e", "a"}), IsEmpty());
  EXPECT_THAT(*Unrecoverable(copies, {"d", "c"}), ElementsAre("c")) << "e has d's";
  EXPECT_THAT(*Unrecoverable(copies, {"b", "a", "c", "b"}), ElementsAre("a", "b"));
  const Placement code{Scheme::Xor(2), {{"a", "b", "c"}, {"d", "e", "f"}}};
  EXPECT_THAT(*Unrecoverable(code, {"a", "d"}), IsEmpty());
  EXPECT_THAT(*Unrecoverable(code, {"f", "d", "a"}), ElementsAre("d", "f"));
  EXPECT_THAT(*Unrecoverable({{}, {{"a"}, {"b"}}}, {"b"}), ElementsAre("b"));
  auto stranger = Unrecoverable(code, {"q"});
  EXPECT_EQ(CodeOf(stranger.status()), ErrorCode::INVALID_ARGUMENT);
  EXPECT_THAT(std::string(stranger.status().message()), HasSubstr("member q"));
}

TEST(Survival, WhatCannotBeAskedIsRefused) {
  const Placement placement = MustPlace(Group(2), 64);
  EXPECT_EQ(CodeOf(SurvivalOfLosses(placement, 65).status()), ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(CodeOf(EnumerateLosses(placement, 65).status()), ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(CodeOf(SimulateLosses(placement, 65, 1, 1).status()), ErrorCode::INVALID_ARGUMENT);
  EXPECT_THAT(std::string(EnumerateLosses(placement, 32).status().message()), HasSubstr("more than 50000000 sets"));
  for (double p : {-0.1, 1.1, std::nan("")}) {
    EXPECT_EQ(CodeOf(SurvivalAtProbability(placement, p).status()), ErrorCode::INVALID_ARGUMENT);
  }
}

TEST(Simulation, TheSameSeedGivesTheSame) {
  const Placement placement = MustPlace(Ring(2), 16);
  EXPECT_EQ(*SimulateLosses(placement, 3, 10'000, 1), *SimulateLosses(placement, 3, 10'000, 1));
  EXPECT_NE(*SimulateLosses(placement, 3, 10'000, 1), *SimulateLosses(placement, 3, 10'000, 2));
}

}  // namespace
}  // namespace ckptd::placement
