// Calls of the service Peer, from the callee's side: gRPC's reactors, and the desk where they are announced. They
// decide nothing (door.h does): whatever comes is told, and waits for what the owner does with it. So one message of a
// caller is in memory at a time, and a caller is slowed down by the owner's own speed.
#ifndef CKPTD_DAEMON_TRANSPORT_VISIT_H_
#define CKPTD_DAEMON_TRANSPORT_VISIT_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "daemon/transport/identity.h"
#include "proto/ckptd/v1/link.pb.h"

namespace ckptd::transport {

using VisitId = uint64_t;

struct Caller {
  CertificateNames names;  // of its certificate, verified; empty without TLS
  std::string address;     // as gRPC writes it
};

// One call. On the owner's thread.
class Visit {
 public:
  Visit(VisitId id, Caller caller) : id_(id), caller_(std::move(caller)) {}
  virtual ~Visit() = default;
  [[nodiscard]] VisitId id() const { return id_; }
  [[nodiscard]] const Caller& caller() const { return caller_; }

  // The answer to Hello. False: with it the call is over, as it was nothing but that question.
  virtual bool Accept(const v1::HelloResponse& answer) = 0;
  // After VisitSink::Said: lets the next message come.
  virtual void ReadNext() = 0;
  // Idempotent; after it nothing is done any more.
  virtual void End(const absl::Status& status) = 0;

 private:
  const VisitId id_;
  const Caller caller_;
};

// Told on gRPC's threads: first Came, of each message Said, then Left, after which End is still to be called.
class VisitSink {
 public:
  virtual ~VisitSink() = default;
  virtual void Came(std::shared_ptr<Visit> visit) = 0;
  virtual void Said(VisitId id, std::shared_ptr<v1::LinkRequest> request) = 0;
  virtual void Left(VisitId id) = 0;
};

// The service itself.
class VisitDesk {
 public:
  virtual ~VisitDesk() = default;  // after the server
  [[nodiscard]] virtual grpc::Service* service() = 0;
  // The owner's thread: ends all visits, and each one that comes later at once.
  virtual void Close(const absl::Status& why) = 0;
};

// `sink` outlives it.
[[nodiscard]] std::unique_ptr<VisitDesk> MakeVisitDesk(VisitSink& sink);

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_VISIT_H_
