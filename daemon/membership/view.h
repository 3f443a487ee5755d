// Who is a member now, as this agent knows it: an immutable View, and the pure state machine that makes the next one
// from what a source says. A source that fails or says nonsense never empties it: the last view stays, and says since
// when it is old and why.
#ifndef CKPTD_DAEMON_MEMBERSHIP_VIEW_H_
#define CKPTD_DAEMON_MEMBERSHIP_VIEW_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "daemon/base/clock.h"
#include "daemon/membership/fence.h"
#include "daemon/membership/member.h"

namespace ckptd::membership {

inline constexpr size_t kMaxRefusals = 32;  // that a view repeats; the others are counted

struct View {
  uint64_t number = 0;          // grows when the members change, and only then; 0 = no source has spoken yet
  uint64_t nodes = 0;           // the same, but for their failure domains
  std::vector<Member> members;  // by name, each once; no two with one address

  // What the source said last and is not in `members`, each with its reason; `refusals` counts all.
  std::vector<absl::Status> refused;
  uint64_t refusals = 0;

  absl::Status source;    // OK, or why the source says nothing: then `members` is what it said last
  Nanos source_since{0};  // monotonic: since when `source` is OK, or fails

  // Null when there is none. Valid as long as the view.
  [[nodiscard]] const Member* Find(absl::string_view name) const;
};

// Pure: no I/O, time is given. One thread; the views that it makes may be read by any.
class ViewState {
 public:
  ViewState();

  // All members that the source knows now, in any order. Believed member by member:
  //   a member that breaks a limit (member.h) is refused; more than kMaxMembers refuse the whole report (Failed);
  //   of members with one name, and of members with one address, the highest generation is taken, and of equal ones
  //   the lowest by name and address, so that all agents take the same; members that are equal count once;
  //   a generation that is over (fence.h) is refused, and what the last view says of that name stays.
  // True when there is a new view() to look at.
  bool Said(std::vector<Member> members, Nanos now);
  // The source could not be asked. True when there is a new view() to look at: it has not said so yet, or says
  // something else.
  bool Failed(const absl::Status& why, Nanos now);

  // May a node that claims to be this generation of `name` be believed? FENCED when it is out of date, NOT_FOUND when
  // it is no member, INVALID_ARGUMENT for generation 0. A claim that is believed fences all lower ones of that name,
  // so ask only for a node whose name was proved (TLS).
  [[nodiscard]] absl::Status Admit(const std::string& name, uint64_t generation);
  // The same of a node whose name nobody proved: no claim of its makes a difference.
  [[nodiscard]] absl::Status WouldAdmit(const std::string& name, uint64_t generation) const;

  // Members say their own failure domains. They count where the source says none, as long as it stays a member. True
  // when there is a new view() to look at: one for all of them.
  bool Learn(const std::map<std::string, Labels>& said);

  [[nodiscard]] const std::shared_ptr<const View>& view() const { return view_; }

 private:
  [[nodiscard]] const Member* FindToLearn(const std::string& name, const Labels& domains) const;
  [[nodiscard]] absl::Status Told(absl::Status claim, const std::string& name) const;
  void Publish(View view) { view_ = std::make_shared<const View>(std::move(view)); }

  void AddLearnt(std::vector<Member>* members) const;

  Fence fence_;
  std::map<std::string, Labels> learnt_;  // by member
  std::shared_ptr<const View> view_;
};

}  // namespace ckptd::membership

#endif  // CKPTD_DAEMON_MEMBERSHIP_VIEW_H_
