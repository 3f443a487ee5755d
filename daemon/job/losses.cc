#include "daemon/job/losses.h"

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/erasure/rotation.h"

namespace ckptd::job {
namespace {

constexpr size_t kMostTold = 3;    // ranks, or groups
constexpr size_t kMostNamed = 16;  // members of one

template <typename Of>
std::string FewOf(const std::vector<Of>& all, absl::string_view last = " ") {
  if (all.size() > kMostNamed)
    return absl::StrCat(absl::StrJoin(all.begin(), all.begin() + kMostNamed, " "), " and ", all.size() - kMostNamed,
                        " more");
  if (all.size() < 2) return absl::StrJoin(all, "");
  return absl::StrCat(absl::StrJoin(all.begin(), all.end() - 1, " "), last, all.back());
}

class Teller {
 public:
  Teller(const LossFacts& facts, const SnapshotId& id, const std::set<Rank>& lacking)
      : facts_(facts), lacking_(lacking) {
    const auto had = facts_.had.find(id);
    if (had == facts_.had.end()) return;
    for (const auto& said : had->second.sealed) there_.insert(said.part->rank());
    for (const auto& said : had->second.copies) there_.insert(said.part->rank());
    for (const auto& said : had->second.parity) {
      if (AnyLacks(said.part->ranks())) TakeParity(*said.part);
    }
  }

  std::string Tell() {
    AddGroupsOfThen();
    IndexGroups();
    std::vector<std::string> told;
    std::set<const Group*> groups;
    size_t more_ranks = 0;
    size_t more_groups = 0;
    for (const Rank rank : lacking_) {
      const Group* group = GroupOf(rank);
      if (group != nullptr && !groups.insert(group).second) continue;
      if (told.size() == kMostTold) {
        ++(group == nullptr ? more_ranks : more_groups);
      } else {
        told.push_back(group == nullptr ? OfRank(rank) : OfGroup(*group));
      }
    }
    if (more_ranks != 0) told.push_back(absl::StrCat("and ", more_ranks, " more ranks"));
    if (more_groups != 0) told.push_back(absl::StrCat("and ", more_groups, " more groups"));
    return absl::StrJoin(told, "; ");
  }

 private:
  struct Group {
    std::vector<Rank> ranks;
    uint32_t parity = 0;
    std::set<std::pair<uint32_t, uint32_t>> blocks;  // stripe, row: of parity, those that are there
  };

  // Of others nothing is told.
  template <typename Ranks>
  bool AnyLacks(const Ranks& ranks) const {
    return std::any_of(ranks.begin(), ranks.end(), [this](Rank rank) { return lacking_.count(rank) != 0; });
  }

  // What it was made of, it says itself.
  void TakeParity(const v1::HeldParity& held) {
    if (!protect::ShapeOf(static_cast<size_t>(held.ranks_size()), held.parity())) return;
    const std::vector<Rank> ranks(held.ranks().begin(), held.ranks().end());
    const auto [at, is_new] = known_.emplace(std::pair{ranks, held.parity()}, groups_.size());
    if (is_new) groups_.push_back({ranks, held.parity(), {}});
    groups_[at->second].blocks.insert({held.stripe(), held.row()});
  }

  // Those of which there is no parity at all.
  void AddGroupsOfThen() {
    if (facts_.parity == 0 || facts_.groups.empty()) return;
    for (const protect::RankGroup& of : protect::RankGroupsOf(facts_.groups, facts_.node_of)) {
      if (!AnyLacks(of.ranks)) continue;
      const bool known = known_.count({of.ranks, facts_.parity}) != 0;
      if (!known && protect::ShapeOf(of.ranks.size(), facts_.parity)) groups_.push_back({of.ranks, facts_.parity, {}});
    }
  }

  void IndexGroups() {
    for (size_t i = 0; i < groups_.size(); ++i) {
      for (const Rank rank : groups_[i].ranks) group_of_.emplace(rank, i);
    }
  }

  const Group* GroupOf(Rank rank) const {
    const auto found = group_of_.find(rank);
    return found == group_of_.end() ? nullptr : &groups_[found->second];
  }

  std::string Node(Rank rank) const {
    const auto node = facts_.node_of.find(rank);
    return node == facts_.node_of.end() ? absl::StrCat("of rank ", rank) : node->second;
  }

  bool Answers(const std::string& node) const { return facts_.reports.count(node) != 0; }

  std::string Marked(const std::string& node) const {
    return Answers(node) ? absl::StrCat(node, " (answers without it)") : node;
  }

  // Which members lost anything of it: their image, or parity that they kept.
  std::string OfGroup(const Group& group) const {
    const erasure::Shape shape = *protect::ShapeOf(group.ranks.size(), group.parity);
    std::set<uint32_t> no_parity;
    for (uint32_t stripe = 0; stripe < shape.members(); ++stripe) {
      for (uint32_t row = 0; row < shape.parity; ++row) {
        if (group.blocks.count({stripe, row}) == 0) no_parity.insert(erasure::ParityHolder(shape, stripe, row));
      }
    }
    std::vector<Rank> images;
    std::vector<std::string> nodes;
    std::vector<std::string> only_parity;
    for (uint32_t place = 0; place < shape.members(); ++place) {
      const Rank rank = group.ranks[place];
      if (there_.count(rank) == 0) {
        images.push_back(rank);
        nodes.push_back(Marked(Node(rank)));
      } else if (no_parity.count(place) != 0) {
        only_parity.push_back(Marked(Node(rank)));
      }
    }
    const std::string parity =
        only_parity.empty() ? "" : absl::StrCat(" and parity on ", NodeWord(only_parity), " ", FewOf(only_parity));
    return absl::StrCat("group of ranks ", FewOf(group.ranks), " (parity ", group.parity, ") lost ",
                        images.size() == 1 ? "rank " : "ranks ", FewOf(images, " and "), " with ", NodeWord(nodes), " ",
                        FewOf(nodes), parity, ": ", images.size() + only_parity.size(), " lost, ", group.parity,
                        " may be");
  }

  static const char* NodeWord(const std::vector<std::string>& nodes) { return nodes.size() == 1 ? "node" : "nodes"; }

  // In the ring that its node was in.
  std::vector<std::string> HoldersFor(const std::string& node) const {
    std::vector<std::string> holders;
    for (const std::vector<std::string>& ring : facts_.groups) {
      const auto at = std::find(ring.begin(), ring.end(), node);
      if (at == ring.end() || facts_.parity != 0) continue;
      const auto place = static_cast<size_t>(at - ring.begin());
      for (size_t i = 1; i < facts_.copies && i < ring.size(); ++i) holders.push_back(ring[(place + i) % ring.size()]);
    }
    return holders;
  }

  std::string OfRank(Rank rank) const {
    const auto node = facts_.node_of.find(rank);
    if (node == facts_.node_of.end()) return absl::StrCat("rank ", rank, ": nobody has it");
    const std::vector<std::string> holders = HoldersFor(node->second);
    std::vector<std::string> said;
    Say(node->second, holders, false, {" is gone", " are gone"}, &said);
    Say(node->second, holders, true, {" answers without it", " answer without it"}, &said);
    if (holders.empty()) said.emplace_back("nobody else has it");
    return absl::StrCat("rank ", rank, ": ", absl::StrJoin(said, ", "));
  }

  // "its node n2 and its holders n3 n4 are gone": of those that answer, or of those that do not.
  void Say(const std::string& node, const std::vector<std::string>& holders, bool answer,
           std::pair<const char*, const char*> what, std::vector<std::string>* said) const {
    std::vector<std::string> of;
    for (const std::string& holder : holders) {
      if (Answers(holder) == answer) of.push_back(holder);
    }
    const bool its_node = Answers(node) == answer;
    const size_t subjects = of.size() + (its_node ? 1 : 0);
    if (subjects == 0) return;
    std::vector<std::string> parts;
    if (its_node) parts.push_back("its node " + node);
    if (!of.empty()) parts.push_back((of.size() == 1 ? "its holder " : "its holders ") + FewOf(of));
    said->push_back(absl::StrCat(absl::StrJoin(parts, " and "), subjects == 1 ? what.first : what.second));
  }

  const LossFacts& facts_;
  const std::set<Rank>& lacking_;
  std::unordered_set<Rank> there_;
  std::vector<Group> groups_;
  std::map<std::pair<std::vector<Rank>, uint32_t>, size_t> known_;  // those of which there is parity
  std::map<Rank, size_t> group_of_;
};

}  // namespace

std::map<Rank, std::string> NodesOf(const v1::DecisionRecord& ran) {
  std::map<Rank, std::string> nodes;
  for (const v1::RankClaim& claim : ran.ranks()) nodes[claim.rank()] = claim.agent();
  return nodes;
}

std::string TellLosses(const LossFacts& facts, const SnapshotId& id, const std::set<Rank>& lacking) {
  return Teller(facts, id, lacking).Tell();
}

}  // namespace ckptd::job
