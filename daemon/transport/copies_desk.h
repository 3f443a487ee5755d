// The service Copies, from the callee's side: who asks is judged as a link's Hello is, what is asked is checked
// (copy_request.h), then CopyHost decides. Everything on the loop's thread, but gRPC's reactors, which only announce.
#ifndef CKPTD_DAEMON_TRANSPORT_COPIES_DESK_H_
#define CKPTD_DAEMON_TRANSPORT_COPIES_DESK_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/os/loop.h"
#include "daemon/transport/bulk_port.h"
#include "daemon/transport/copies.h"
#include "daemon/transport/hello.h"
#include "daemon/transport/mailbox.h"
#include "daemon/transport/served_moves.h"
#include "daemon/transport/visit.h"

namespace ckptd::transport {

struct CopiesDeskOptions {
  CopyHost* host;  // null: REFUSED
  Nanos patience;  // for the first message of a Move
  size_t moves_at_once;
  // As DoorOptions has them.
  std::function<absl::StatusOr<Card>()> self;
  std::function<absl::Status(const CertificateNames& names, const Card& peer)> admit;
  // Of a card that was admitted before, or that nothing has proved: no claim of it counts.
  std::function<absl::Status(const Card& peer)> would_admit;
  std::vector<BulkPort*> bulks;  // where Move is taken, too
};

class CopiesDesk {
 public:
  virtual ~CopiesDesk() = default;  // after the server
  [[nodiscard]] virtual grpc::Service* service() = 0;
  // Ends the transfers of whoever would not be let in now.
  virtual void Rejudge() = 0;
  // Ends all calls, and each one that comes later at once. After the mailbox was closed; waits for the transfers'
  // threads, and for no peer.
  virtual void Close(const absl::Status& why) = 0;
};

// `loop` and the host outlive it.
[[nodiscard]] std::unique_ptr<CopiesDesk> MakeCopiesDesk(Loop& loop, std::shared_ptr<Mailbox> mailbox,
                                                         CopiesDeskOptions options);

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_COPIES_DESK_H_
