#include "daemon/membership/etcd_mirror.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/json/printer.h"
#include "daemon/json/reader.h"
#include "proto/ckptd/v1/member.pb.h"

namespace ckptd::membership {
namespace {

JsonLimits RecordLimits() {
  JsonLimits limits;
  limits.bytes = 16 << 10;
  limits.depth = 8;
  limits.string_bytes = 1 << 10;
  limits.elements = 256;
  return limits;
}

}  // namespace

std::string EncodeMember(const Member& member) {
  v1::MemberRecord record;
  record.set_address(member.address);
  for (const auto& [key, value] : member.domains) (*record.mutable_domains())[key] = value;
  return PrintJson(record, JsonStyle::kCompact);
}

Member DecodeMember(const std::string& name, const EtcdEntry& entry) {
  Member member{name, "", {}, static_cast<uint64_t>(std::max<int64_t>(entry.revision, 0))};
  v1::MemberRecord record;
  if (!ReadJson(entry.value, RecordLimits(), &record).ok()) return member;
  member.address = record.address();
  for (const auto& [key, value] : record.domains()) member.domains.emplace(key, value);
  return member;
}

absl::Status EtcdMirror::Check(const EtcdHeader& newest) const {
  if (empty()) return absl::OkStatus();
  if (newest.cluster != cluster_)
    return Error(ErrorCode::REFUSED,
                 absl::StrCat("etcd: this is cluster ", absl::Hex(newest.cluster), ", the members came from ",
                              absl::Hex(cluster_), ": correct peers.etcd_endpoints, or restart all agents"));
  if (newest.revision < revision_)
    return Error(ErrorCode::REFUSED,
                 absl::StrCat("etcd went back from revision ", revision_, " to ", newest.revision,
                              ", as one restored from a backup: restart all agents when that is meant"));
  return absl::OkStatus();
}

absl::Status EtcdMirror::Reset(const EtcdList& list) {
  CKPTD_RETURN_IF_ERROR(Check(list.header));
  cluster_ = list.header.cluster;
  revision_ = list.header.revision;
  entries_.clear();
  for (const EtcdEntry& entry : list.entries) {
    if (absl::StartsWith(entry.key, prefix_)) Take(entry);
  }
  return absl::OkStatus();
}

void EtcdMirror::Take(const EtcdEntry& entry) {
  entries_[entry.key] = {entry, DecodeMember(entry.key.substr(prefix_.size()), entry)};
}

// A server that is behind says an older revision in its header, which is no error. Changes come in order, those of one
// transaction together; what is repeated after a broken connection is passed over.
absl::Status EtcdMirror::Apply(const EtcdNews& news) {
  if (news.header.cluster != cluster_) return Check(news.header);
  int64_t last = news.up_to_date ? news.header.revision : 0;
  for (const EtcdChange& change : news.changes) {
    last = std::max(last, change.entry.revision);
    if (!absl::StartsWith(change.entry.key, prefix_) || change.entry.revision <= revision_) continue;
    if (change.deleted) {
      entries_.erase(change.entry.key);
    } else {
      Take(change.entry);
    }
  }
  revision_ = std::max(revision_, last);
  if (entries_.size() <= kMaxMembers) return absl::OkStatus();
  return Error(ErrorCode::REFUSED, absl::StrCat("etcd has more than ", kMaxMembers, " members under ", prefix_));
}

std::vector<Member> EtcdMirror::Members() const {
  std::vector<Member> members;
  members.reserve(entries_.size());
  for (const auto& [key, known] : entries_) members.push_back(known.member);
  return members;
}

std::optional<EtcdEntry> EtcdMirror::Find(const std::string& name) const {
  const auto found = entries_.find(prefix_ + name);
  if (found == entries_.end()) return std::nullopt;
  return found->second.entry;
}

}  // namespace ckptd::membership
