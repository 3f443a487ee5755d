#include "daemon/membership/view.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd::membership {
namespace {

// The best first: whoever comes later and is in its way is refused.
bool Before(const Member& a, const Member& b) {
  if (a.generation != b.generation) return a.generation > b.generation;
  return std::tie(a.name, a.address, a.domains) < std::tie(b.name, b.address, b.domains);
}

bool SameNodes(const std::vector<Member>& a, const std::vector<Member>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Member& one, const Member& other) {
    return std::tie(one.name, one.address, one.generation) == std::tie(other.name, other.address, other.generation);
  });
}

// One report on its way into a view.
class Merge {
 public:
  Merge(Fence& fence, const View& last, View* next) : fence_(fence), last_(last), next_(*next) {}

  void Run(std::vector<Member> said) {
    std::sort(said.begin(), said.end(), Before);
    for (Member& member : said) Consider(std::move(member));
    for (const Member& member : last_.members) {
      if (taken_.find(member.name) == taken_.end()) fence_.Left(member.name);
    }
    next_.members.reserve(taken_.size());
    for (auto& [name, member] : taken_) next_.members.push_back(std::move(member));
  }

 private:
  void Consider(Member member) {
    if (absl::Status fits = CheckMember(member); !fits.ok()) return Refuse(fits);
    if (const auto same = taken_.find(member.name); same != taken_.end()) {
      if (same->second != member) Refuse(Twice(member, same->second));
      return;
    }
    if (const auto there = address_.find(member.address); there != address_.end())
      return Refuse(SameAddress(member, taken_.at(there->second)));
    if (absl::Status lives = fence_.Named(member.name, member.generation); !lives.ok()) {
      Refuse(lives);
      return KeepLast(member.name);
    }
    Take(std::move(member));
  }

  void KeepLast(const std::string& name) {
    const Member* last = last_.Find(name);
    if (last != nullptr && address_.find(last->address) == address_.end()) Take(*last);
  }

  void Take(Member member) {
    address_.emplace(member.address, member.name);
    std::string name = member.name;
    taken_.emplace(std::move(name), std::move(member));
  }

  void Refuse(absl::Status why) {
    if (next_.refused.size() < kMaxRefusals) next_.refused.push_back(std::move(why));
    ++next_.refusals;
  }

  static absl::Status Twice(const Member& refused, const Member& taken) {
    return Error(ErrorCode::REFUSED,
                 absl::StrCat("node ", refused.name, " is there twice: at ", taken.address, " (generation ",
                              taken.generation, ", taken) and at ", refused.address, " (generation ",
                              refused.generation, ", refused): give each node its own agent.node_name"));
  }

  static absl::Status SameAddress(const Member& refused, const Member& taken) {
    return Error(ErrorCode::REFUSED,
                 absl::StrCat("nodes ", taken.name, " (taken) and ", refused.name, " (refused) have one address, ",
                              taken.address, ": correct one of them"));
  }

  Fence& fence_;
  const View& last_;
  View& next_;
  std::map<std::string, Member> taken_;
  std::map<std::string, std::string> address_;  // to name
};

}  // namespace

const Member* View::Find(absl::string_view name) const {
  const auto found = std::lower_bound(members.begin(), members.end(), name,
                                      [](const Member& member, absl::string_view key) { return member.name < key; });
  return found == members.end() || found->name != name ? nullptr : &*found;
}

ViewState::ViewState() { Publish(View{}); }

bool ViewState::Said(std::vector<Member> members, Nanos now) {
  if (members.size() > kMaxMembers)
    return Failed(Error(ErrorCode::REFUSED, absl::StrCat("the source names ", members.size(), " members; at most ",
                                                         kMaxMembers, ": the last view stays")),
                  now);
  const View& last = *view_;
  AddLearnt(&members);
  View next;
  Merge(fence_, last, &next).Run(std::move(members));
  const bool same = last.number != 0 && next.members == last.members;
  next.number = same ? last.number : last.number + 1;
  next.nodes = SameNodes(next.members, last.members) ? last.nodes : last.nodes + 1;
  std::erase_if(learnt_, [&](const auto& of) { return next.Find(of.first) == nullptr; });
  next.source_since = last.source.ok() && last.number != 0 ? last.source_since : now;
  if (same && last.source.ok() && next.refusals == last.refusals && next.refused == last.refused) return false;
  Publish(std::move(next));
  return true;
}

void ViewState::AddLearnt(std::vector<Member>* members) const {
  for (Member& member : *members) {
    const auto learnt = learnt_.find(member.name);
    if (member.domains.empty() && learnt != learnt_.end()) member.domains = learnt->second;
  }
}

// Null: that is no news, or not to be believed.
const Member* ViewState::FindToLearn(const std::string& name, const Labels& domains) const {
  const Member* known = view_->Find(name);
  if (known == nullptr || known->domains == domains) return nullptr;
  if (!known->domains.empty() && learnt_.count(name) == 0) return nullptr;  // the source said them
  Member member = *known;
  member.domains = domains;
  return CheckMember(member).ok() ? known : nullptr;
}

bool ViewState::Learn(const std::map<std::string, Labels>& said) {
  std::optional<View> next;
  for (const auto& [name, domains] : said) {
    const Member* known = FindToLearn(name, domains);
    if (known == nullptr) continue;
    if (!next) next = *view_;
    next->members[static_cast<size_t>(known - view_->members.data())].domains = domains;
    learnt_[name] = domains;
  }
  if (!next) return false;
  ++next->number;
  Publish(*std::move(next));
  return true;
}

bool ViewState::Failed(const absl::Status& why, Nanos now) {
  if (view_->source == why) return false;
  View next = *view_;
  if (next.source.ok()) next.source_since = now;
  next.source = why;
  Publish(std::move(next));
  return true;
}

absl::Status ViewState::Admit(const std::string& name, uint64_t generation) {
  return Told(fence_.Claimed(name, generation), name);
}

absl::Status ViewState::WouldAdmit(const std::string& name, uint64_t generation) const {
  return Told(fence_.WouldClaim(name, generation), name);
}

absl::Status ViewState::Told(absl::Status claim, const std::string& name) const {
  if (!absl::IsNotFound(claim)) return claim;
  return Error(ErrorCode::NOT_FOUND,
               absl::StrCat("node ", Shown(name), " is not a member in view ", view_->number, " of ",
                            view_->members.size(), ": it registers first, or is added to peers.members"));
}

}  // namespace ckptd::membership
