// How the agent's control thread speaks to the trainer of one (job, rank). Room app turns effects of the machines into
// these calls; room session implements them. Called on the control thread only; never blocks: a full or closed socket
// drops the packet, because every message is repeated or stands in shared memory anyway.
#ifndef CKPTD_DAEMON_SNAPSHOT_SESSION_SINK_H_
#define CKPTD_DAEMON_SNAPSHOT_SESSION_SINK_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "daemon/snapshot/events.h"

namespace ckptd::snapshot {

class SessionSink {
 public:
  virtual ~SessionSink() = default;

  // LOAD, with the descriptors of the slot's file and of its ctl file when there is a snapshot.
  virtual void Load(absl::string_view job, Rank rank, const SendLoad& load) = 0;
  virtual void Go(absl::string_view job, Rank rank, const SendGo& go) = 0;
  // After the ctl file and the bell hold the grant.
  virtual void Grant(absl::string_view job, Rank rank, const OpenGrant& grant) = 0;
  virtual void News(absl::string_view job, Rank rank, const SendNews& news) = 0;
  // Ends the restore() call of `ticket`. `error` is made by Error(ErrorCode, sentence).
  virtual void Refuse(absl::string_view job, Rank rank, Ticket ticket, const absl::Status& error) = 0;
};

}  // namespace ckptd::snapshot

#endif  // CKPTD_DAEMON_SNAPSHOT_SESSION_SINK_H_
