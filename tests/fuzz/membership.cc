// Feeds what daemon/membership reads from outside: a DNS server's answer, a hostlist, the list of members of the
// configuration, a member's record in etcd. The first byte says which.
//
// What is accepted must keep the limits of member.h, and what is made a member of it must be one that a view takes or
// refuses without losing the others.
#include <algorithm>

#include "daemon/membership/dns_answer.h"
#include "daemon/membership/etcd_mirror.h"
#include "daemon/membership/fixed_sources.h"
#include "daemon/membership/hostlist.h"
#include "daemon/membership/view.h"
#include "tests/fuzz/fuzz.h"

namespace ckptd::fuzz {

// A few bytes can ask for 10,000 names of 253, and a view holds each name and address twice on its way.
const Allowed kAllowed = {64 << 20, 2048};

namespace {

using membership::kMaxMembers;
using membership::kMaxNameBytes;
using membership::Member;

// A view of these beside one good member, which must be in it.
void LookAt(std::vector<Member> members) {
  const Member good = {"good", "good.example:1", {}, 7};
  members.erase(
      std::remove_if(members.begin(), members.end(),
                     [&](const Member& member) { return member.name == good.name || member.address == good.address; }),
      members.end());
  if (members.size() == kMaxMembers) members.pop_back();
  members.push_back(good);
  membership::ViewState state;
  FUZZ_CHECK(state.Said(members, Nanos(1)));
  const membership::View& view = *state.view();
  FUZZ_CHECK(view.Find(good.name) != nullptr && view.number == 1);
  FUZZ_CHECK(view.members.size() + view.refusals <= members.size());
  for (const Member& member : view.members) FUZZ_CHECK(membership::CheckMember(member).ok());
}

void ReadAnswer(const std::string& text) {
  auto records = membership::ParseDnsAnswer(text);
  if (!records.ok()) return;
  FUZZ_CHECK(records->size() <= text.size() / 11);
  std::vector<Member> members;
  for (const membership::DnsRecord& record : *records)
    members.push_back({record.host, membership::JoinAddress(record.host, record.port), {}, 0});
  LookAt(std::move(members));
}

void ReadHostlist(const std::string& text) {
  constexpr size_t kMost = 500;
  auto names = membership::ExpandHostlist(text, kMost);
  if (!names.ok()) return;
  FUZZ_CHECK(!names->empty() && names->size() <= kMost);
  for (const std::string& name : *names) FUZZ_CHECK(!name.empty() && name.size() <= kMaxNameBytes);
}

void ReadMembers(const std::string& text) {
  auto members = membership::ParseMembers(text, 9465);
  if (!members.ok()) return;
  FUZZ_CHECK(members->size() <= kMaxMembers);
  for (const Member& member : *members) FUZZ_CHECK(membership::CheckMember(member).ok());
}

void ReadRecord(const std::string& text) {
  const Member member = membership::DecodeMember("n", {"/p/n", text, 3, 1});
  if (membership::CheckMember(member).ok()) {
    const Member again = membership::DecodeMember("n", {"/p/n", membership::EncodeMember(member), 3, 1});
    FUZZ_CHECK(again == member);
  }
  LookAt({member});
}

}  // namespace

void Run(Input input) {
  Reader in(input);
  const auto which = in.Take<uint8_t>();
  const std::string text(TextOf(in.Bytes(input.size())));
  switch (which % 4) {
    case 0:
      return ReadAnswer(text);
    case 1:
      return ReadHostlist(text);
    case 2:
      return ReadMembers(text);
    default:
      return ReadRecord(text);
  }
}

}  // namespace ckptd::fuzz
