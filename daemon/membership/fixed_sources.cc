#include "daemon/membership/fixed_sources.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/membership/hostlist.h"

namespace ckptd::membership {
namespace {

constexpr char kNextSlurm[] = ": start ckptd inside the job (srun), or set another peers.membership";

absl::Status Invalid(absl::string_view message) { return Error(ErrorCode::INVALID_ARGUMENT, message); }

// Takes `key` out of the labels: some words of a group are no failure domains.
std::string TakeOut(const std::string& key, Labels* labels) {
  const auto found = labels->find(key);
  if (found == labels->end()) return "";
  std::string value = found->second;
  labels->erase(found);
  return value;
}

absl::StatusOr<uint16_t> ParsePort(absl::string_view text) {
  CKPTD_ASSIGN_OR_RETURN(HostPort parsed, ParseAddress(absl::StrCat("port:", text)));
  return parsed.port;
}

// address= is taken out first: a label's value has no colon.
absl::Status ParseGroup(absl::string_view text, uint16_t port, std::vector<Member>* members) {
  std::vector<absl::string_view> words = absl::StrSplit(text, ' ', absl::SkipEmpty());
  if (words.empty()) return absl::OkStatus();  // after the last ";"
  std::string address;
  std::string rest;
  for (size_t i = 1; i < words.size(); ++i) {
    if (words[i].substr(0, 8) == "address=") {
      address = std::string(words[i].substr(8));
    } else {
      absl::StrAppend(&rest, words[i], " ");
    }
  }
  CKPTD_ASSIGN_OR_RETURN(Labels domains, ParseLabels(rest));
  if (std::string own = TakeOut("port", &domains); !own.empty()) {
    CKPTD_ASSIGN_OR_RETURN(port, ParsePort(own));
  }
  CKPTD_ASSIGN_OR_RETURN(std::vector<std::string> names, ExpandHostlist(words[0], kMaxMembers - members->size()));
  if (!address.empty() && names.size() > 1)
    return Invalid(absl::StrCat(Shown(words[0]), " has ", names.size(), " nodes and one address: ", Shown(address)));
  for (std::string& name : names) {
    std::string where = address.empty() ? JoinAddress(name, port) : address;
    members->push_back({std::move(name), std::move(where), domains, 0});
    CKPTD_RETURN_IF_ERROR(CheckMember(members->back()));
  }
  return absl::OkStatus();
}

// What a view would leave out is an error in a list that a person wrote.
absl::Status CheckUnique(const std::vector<Member>& members) {
  std::set<absl::string_view> names;
  std::map<absl::string_view, absl::string_view> addresses;
  for (const Member& member : members) {
    if (!names.insert(member.name).second) return Invalid(absl::StrCat("node ", member.name, " is listed twice"));
    const auto [there, added] = addresses.emplace(member.address, member.name);
    if (!added)
      return Invalid(
          absl::StrCat("nodes ", there->second, " and ", member.name, " have one address, ", member.address));
  }
  return absl::OkStatus();
}

bool Contains(const std::vector<Member>& members, const std::string& name) {
  return std::any_of(members.begin(), members.end(), [&](const Member& member) { return member.name == name; });
}

std::unique_ptr<Source> MakeFixed(std::vector<Member> members, std::string self, uint64_t incarnation) {
  return std::make_unique<FixedSource>(std::move(members), Standing{std::move(self), incarnation, absl::OkStatus()});
}

absl::StatusOr<std::vector<std::string>> SlurmNodes(const Environment& environment) {
  std::optional<std::string> list = environment("SLURM_JOB_NODELIST");
  if (!list) list = environment("SLURM_NODELIST");
  if (!list) return Invalid(absl::StrCat("SLURM_JOB_NODELIST is not set", kNextSlurm));
  CKPTD_ASSIGN_OR_RETURN(std::vector<std::string> nodes, ExpandHostlist(*list, kMaxMembers));
  const std::optional<std::string> count = environment("SLURM_JOB_NUM_NODES");
  if (count && *count != absl::StrCat(nodes.size()))
    return Invalid(absl::StrCat("SLURM_JOB_NUM_NODES is ", Shown(*count), ", and SLURM_JOB_NODELIST has ", nodes.size(),
                                " nodes: ", Shown(*list)));
  return nodes;
}

absl::StatusOr<std::string> SlurmSelf(const Environment& environment, const std::vector<std::string>& nodes) {
  if (std::optional<std::string> name = environment("SLURMD_NODENAME")) {
    if (std::find(nodes.begin(), nodes.end(), *name) != nodes.end()) return *name;
    return Invalid(absl::StrCat("SLURMD_NODENAME is ", Shown(*name), ", which is not in SLURM_JOB_NODELIST"));
  }
  const std::optional<std::string> text = environment("SLURM_NODEID");
  uint32_t index = 0;
  if (!text) return Invalid(absl::StrCat("neither SLURMD_NODENAME nor SLURM_NODEID is set", kNextSlurm));
  if (!absl::SimpleAtoi(*text, &index) || index >= nodes.size())
    return Invalid(absl::StrCat("SLURM_NODEID is ", Shown(*text), ": expected 0 to ", nodes.size() - 1));
  return nodes[index];
}

}  // namespace

Member MemberOf(const Self& self) {
  return {self.name, JoinAddress(self.host.empty() ? self.name : self.host, self.port), self.domains, 0};
}

absl::Status FixedSource::Start(SourceSink& sink) {
  sink.Said(std::move(members_));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Member>> ParseMembers(absl::string_view text, uint16_t port) {
  std::vector<Member> members;
  for (absl::string_view group : absl::StrSplit(text, ';')) {
    CKPTD_RETURN_IF_ERROR(ParseGroup(group, port, &members));
  }
  CKPTD_RETURN_IF_ERROR(CheckUnique(members));
  return members;
}

absl::StatusOr<std::unique_ptr<Source>> MakeStaticSource(const Self& self, absl::string_view text) {
  CKPTD_ASSIGN_OR_RETURN(std::vector<Member> members, ParseMembers(text, self.port));
  if (members.empty()) members.push_back(MemberOf(self));
  CKPTD_RETURN_IF_ERROR(CheckMember(members.front()));
  for (Member& member : members) {
    if (member.name == self.name && member.domains.empty()) member.domains = self.domains;
  }
  if (!Contains(members, self.name))
    return Invalid(absl::StrCat("this node, ", Shown(self.name), ", is not among the ", members.size(),
                                " of peers.members: add it, or set agent.node_name to its name there"));
  return MakeFixed(std::move(members), self.name, self.incarnation);
}

absl::StatusOr<std::unique_ptr<Source>> MakeSlurmSource(const Self& self, const Environment& environment) {
  CKPTD_ASSIGN_OR_RETURN(std::vector<std::string> nodes, SlurmNodes(environment));
  CKPTD_ASSIGN_OR_RETURN(std::string own, SlurmSelf(environment, nodes));
  std::vector<Member> members;
  members.reserve(nodes.size());
  for (std::string& node : nodes) {
    std::string address = JoinAddress(node, self.port);
    const Labels domains = node == own ? self.domains : Labels();
    members.push_back({std::move(node), std::move(address), domains, 0});
    CKPTD_RETURN_IF_ERROR(CheckMember(members.back()));
  }
  CKPTD_RETURN_IF_ERROR(CheckUnique(members));
  return MakeFixed(std::move(members), std::move(own), self.incarnation);
}

}  // namespace ckptd::membership
