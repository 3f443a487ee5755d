// The keys under the prefix, as a list and the changes after it make them (etcd's list-then-watch: a list at revision
// R, then all changes from R + 1 on). Pure; one thread.
//
// A member's key is the prefix and its name, its value a MemberRecord (proto/ckptd/v1/member.proto), its generation the
// revision of the key's last change: a value is written once per registration, so each is higher than all before it.
#ifndef CKPTD_DAEMON_MEMBERSHIP_ETCD_MIRROR_H_
#define CKPTD_DAEMON_MEMBERSHIP_ETCD_MIRROR_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/membership/etcd.h"
#include "daemon/membership/member.h"

namespace ckptd::membership {

[[nodiscard]] std::string EncodeMember(const Member& member);
// A value that is no record gives a member without an address, which no view takes: it is refused there by its name.
[[nodiscard]] Member DecodeMember(const std::string& name, const EtcdEntry& entry);

class EtcdMirror {
 public:
  explicit EtcdMirror(std::string prefix) : prefix_(std::move(prefix)) {}

  // REFUSED where this is another cluster's answer, or one from the past of this one (a store that was restored from a
  // backup): generations would begin anew. A person decides then, and restarts the agents.
  [[nodiscard]] absl::Status Check(const EtcdHeader& newest) const;
  // Checks, then takes the list for what there is.
  [[nodiscard]] absl::Status Reset(const EtcdList& list);
  // REFUSED for another cluster, and for a change that makes more than kMaxMembers: list anew.
  [[nodiscard]] absl::Status Apply(const EtcdNews& news);

  [[nodiscard]] bool empty() const { return revision_ == 0; }  // nothing was ever listed
  [[nodiscard]] int64_t revision() const { return revision_; }
  [[nodiscard]] std::vector<Member> Members() const;
  [[nodiscard]] std::optional<EtcdEntry> Find(const std::string& name) const;

 private:
  struct Known {
    EtcdEntry entry;
    Member member;  // what it says: read once, not at each change of another
  };

  void Take(const EtcdEntry& entry);

  const std::string prefix_;
  uint64_t cluster_ = 0;
  int64_t revision_ = 0;
  std::map<std::string, Known> entries_;  // by whole key
};

}  // namespace ckptd::membership

#endif  // CKPTD_DAEMON_MEMBERSHIP_ETCD_MIRROR_H_
