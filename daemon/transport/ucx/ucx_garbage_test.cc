// What a peer may send that reaches a port of UCX and has libucp, but keeps none of the rules of ucx_stream.h: it is
// cut off, nothing of it is told to anybody, and the port goes on.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>

#include <optional>

#include "daemon/base/mutex.h"
#include "daemon/transport/move_frame.h"
#include "daemon/transport/ucx/ucp_calls.h"
#include "daemon/transport/ucx/ucx_pair.h"
#include "daemon/transport/ucx/ucx_stream.h"

namespace ckptd::transport {
namespace {

using std::chrono::seconds;

// libucp spoken by hand.
class RawUcx {
 public:
  explicit RawUcx(uint16_t port) : ucp_(**LoadUcp(TestUcx())) {
    ucp_config_t* config = nullptr;
    Must(ucp_.ucp_config_read(nullptr, nullptr, &config));
    Must(ucp_.ucp_config_modify(config, "NET_DEVICES", "lo"));
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    Must(ucp_.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_));
    ucp_.ucp_config_release(config);
    ucp_worker_params_t of_worker{};
    Must(ucp_.ucp_worker_create(context_, &of_worker, &worker_));
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB;
    handler.id = 1;
    handler.cb = [](void*, const void*, size_t, void*, size_t, const ucp_am_recv_param_t*) { return UCS_OK; };
    Must(ucp_.ucp_worker_set_am_recv_handler(worker_, &handler));
    Must(ucp_.ucp_worker_get_efd(worker_, &event_fd_));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ucp_ep_params_t of_ep{};
    of_ep.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                       UCP_EP_PARAM_FIELD_ERR_HANDLER;
    of_ep.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    of_ep.sockaddr = {reinterpret_cast<const sockaddr*>(&to), sizeof to};
    of_ep.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    of_ep.err_handler.cb = [](void*, ucp_ep_h, ucs_status_t) {};
    Must(ucp_.ucp_ep_create(worker_, &of_ep, &endpoint_));
  }
  ~RawUcx() {
    ucp_request_param_t how{};
    how.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    how.flags = UCP_EP_CLOSE_FLAG_FORCE;
    bool done = false;
    how.user_data = &done;
    how.cb.send = Done;
    if (UCS_PTR_IS_PTR(ucp_.ucp_ep_close_nbx(endpoint_, &how))) Until([&] { return done; });
    done = false;
    how.op_attr_mask &= ~static_cast<uint32_t>(UCP_OP_ATTR_FIELD_FLAGS);
    if (UCS_PTR_IS_PTR(ucp_.ucp_worker_flush_nbx(worker_, &how))) Until([&] { return done; });  // UcxStream::Settle
    Until([this] { return sending_ == 0; });
    ucp_.ucp_worker_destroy(worker_);
    ucp_.ucp_cleanup(context_);
  }
  RawUcx(const RawUcx&) = delete;
  RawUcx& operator=(const RawUcx&) = delete;

  // Gives it to UCX; whether it arrives is the other end's matter.
  void Send(const std::string& head, const std::string& body, unsigned flags) {
    kept_.push_back(head);
    const std::string& kept_head = kept_.back();
    kept_.push_back(body);
    ucp_request_param_t how{};
    how.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    how.flags = flags;
    how.user_data = this;
    how.cb.send = [](void* request, ucs_status_t, void* user_data) {
      auto* const self = static_cast<RawUcx*>(user_data);
      self->ucp_.ucp_request_free(request);
      --self->sending_;
    };
    if (UCS_PTR_IS_PTR(ucp_.ucp_am_send_nbx(endpoint_, 1, kept_head.data(), kept_head.size(), kept_.back().data(),
                                            kept_.back().size(), &how)))
      ++sending_;
  }
  bool Until(const std::function<bool()>& so) {
    const auto deadline = std::chrono::steady_clock::now() + seconds(5);
    while (!so()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      if (ucp_.ucp_worker_progress(worker_) != 0 || ucp_.ucp_worker_arm(worker_) != UCS_OK) continue;
      pollfd ready{event_fd_, POLLIN, 0};
      (void)poll(&ready, 1, 5);
    }
    return true;
  }

 private:
  static void Must(ucs_status_t status) {
    if (status != UCS_OK) std::abort();
  }
  static void Done(void* request, ucs_status_t, void* user_data) {
    *static_cast<bool*>(user_data) = true;
    (**LoadUcp(TestUcx())).ucp_request_free(request);
  }

  const UcpCalls& ucp_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  int event_fd_ = -1;
  int sending_ = 0;
  std::deque<std::string> kept_;
};

std::string HeadOf(uint8_t kind, uint32_t number) {
  std::string head(UcxStream::kHeadBytes, 0);
  head[0] = static_cast<char>(kind);
  for (size_t i = 0; i < 4; ++i) head[4 + i] = static_cast<char>(number >> (8 * i));
  return head;
}

class UcxGarbageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoUcx(); !why.empty()) GTEST_SKIP() << "skipped: " << why;
    port_ = MustOpenUcx();
    port_->Serve([this](std::shared_ptr<BulkGuest> guest, const std::string& hello) {
      MutexLock lock(mutex_);
      guest_ = std::move(guest);
      hello_ = hello;
    });
  }
  std::shared_ptr<BulkGuest> Guest() {
    MutexLock lock(mutex_);
    return guest_;
  }
  // A good first frame, answered, then what `misbehave` sends. How many frames were told before it was cut off; -1: it
  // was not.
  int ToldOf(const std::function<void(RawUcx&)>& misbehave) {
    {
      MutexLock lock(mutex_);
      guest_ = nullptr;
    }
    RawUcx raw(port_->port());
    raw.Send(HeadOf(1, 0), "hello", UCP_AM_SEND_FLAG_EAGER);
    if (!raw.Until([this] { return Guest() != nullptr; })) return -1;
    const std::shared_ptr<BulkGuest> guest = Guest();
    guest->Answer("yes");
    misbehave(raw);
    int told = 0;
    // Nothing is taken until it was cut off: whoever waits is what is tested.
    if (!raw.Until([&] { return !guest->writable(); })) return -1;
    while (true) {
      const auto came = guest->Take();
      if (!came.ok() || !came->has_value()) break;
      ++told;
    }
    return guest->ended() ? told : -1;
  }
  int ToldOf(const std::string& head, const std::string& body, unsigned flags = UCP_AM_SEND_FLAG_EAGER) {
    return ToldOf([&](RawUcx& raw) { raw.Send(head, body, flags); });
  }

  Mutex mutex_;
  std::shared_ptr<BulkGuest> guest_ CKPTD_GUARDED_BY(mutex_);
  std::string hello_ CKPTD_GUARDED_BY(mutex_);
  std::unique_ptr<UcxPort> port_;
};

TEST_F(UcxGarbageTest, WhatIsNoFrameEndsTheConnection) {
  const std::string window = Encode(Window{1, 4096});
  EXPECT_EQ(ToldOf("abc", window), 0) << "a short head";
  EXPECT_EQ(ToldOf(HeadOf(2, 1) + "x", window), 0) << "a long head";
  EXPECT_EQ(ToldOf(HeadOf(2, 1).replace(1, 1, "x"), window), 0) << "a head with other bytes";
  for (const uint8_t kind : {0, 7, 255}) EXPECT_EQ(ToldOf(HeadOf(kind, 1), window), 0) << int{kind};
  EXPECT_EQ(ToldOf(HeadOf(1, 1), "hello"), 0) << "a second Hello";
  EXPECT_EQ(ToldOf(HeadOf(2, 1), ""), 0) << "an empty message";
  EXPECT_EQ(ToldOf(HeadOf(2, 1), std::string(kMaxMessage + 1, 'x')), 0) << "a message that is too long";
  EXPECT_EQ(ToldOf(HeadOf(3, 1), std::string(kMaxChunkFrame + 1, 'x')), 0) << "a chunk's head that is too long";
  EXPECT_EQ(ToldOf(HeadOf(5, 1), "x"), 0) << "an end with a body";
  EXPECT_EQ(ToldOf(HeadOf(5, 1), "", UCP_AM_SEND_FLAG_RNDV), 0) << "an end that is offered";
}

TEST_F(UcxGarbageTest, FramesComeInTheWayOfTheirKind) {
  EXPECT_EQ(ToldOf(HeadOf(4, 1), std::string(4096, 'x')), 0) << "data at once";
  EXPECT_EQ(ToldOf(HeadOf(4, 1), std::string(kMaxPiece + 1, 'x'), UCP_AM_SEND_FLAG_RNDV), 0) << "too much data";
  EXPECT_EQ(ToldOf(HeadOf(2, 1), std::string(4096, 'x'), UCP_AM_SEND_FLAG_RNDV), 0) << "a message that is offered";
}

TEST_F(UcxGarbageTest, NumbersFollowEachOther) {
  const std::string window = Encode(Window{1, 4096});
  EXPECT_EQ(ToldOf(HeadOf(2, 0), window), 0) << "again";
  EXPECT_EQ(ToldOf(HeadOf(2, 1 + UcxStream::kAhead), window), 0) << "far ahead";
  EXPECT_EQ(ToldOf(HeadOf(2, UINT32_MAX), window), 0);
  EXPECT_EQ(ToldOf(HeadOf(6, 1000), ""), 0) << "more was taken than was sent";
  EXPECT_EQ(ToldOf([&](RawUcx& raw) {
              for (const uint32_t number : {2, 2}) raw.Send(HeadOf(2, number), window, UCP_AM_SEND_FLAG_EAGER);
            }),
            0)
      << "one that is early, twice";
}

TEST_F(UcxGarbageTest, WhoeverSendsMoreThanIsTakenIsCutOff) {
  const std::string window = Encode(Window{1, 4096});
  const auto flood = [&](RawUcx& raw) {
    for (uint32_t number = 1; number < 500; ++number) raw.Send(HeadOf(2, number), window, UCP_AM_SEND_FLAG_EAGER);
  };
  EXPECT_EQ(ToldOf(flood), static_cast<int>(UcxStream::kAhead)) << "those that came within the rules are told";
  const auto offers = [&](RawUcx& raw) {
    for (uint32_t number = 1; number < 100; ++number)
      raw.Send(HeadOf(4, number), std::string(4096, 'x'), UCP_AM_SEND_FLAG_RNDV);
  };
  EXPECT_EQ(ToldOf(offers), 0) << "nobody is to be asked for bytes by an end that was cut off";
}

TEST_F(UcxGarbageTest, AFirstFrameThatIsNoHelloIsNotTold) {
  uint64_t made = 0;
  for (const uint8_t kind : {2, 3, 5, 9}) {
    ++made;
    RawUcx raw(port_->port());
    raw.Send(HeadOf(kind, 0), kind == 5 ? "" : "hello", UCP_AM_SEND_FLAG_EAGER);
    EXPECT_TRUE(raw.Until([&] { return port_->made() == made && port_->streams() == 0; })) << int{kind};
    EXPECT_EQ(Guest(), nullptr) << int{kind};
  }
  RawUcx raw(port_->port());
  raw.Send(HeadOf(4, 0), std::string(4096, 'x'), UCP_AM_SEND_FLAG_RNDV);
  EXPECT_TRUE(raw.Until([this] { return port_->made() == 5 && port_->streams() == 0; })) << "an offer";
  EXPECT_EQ(Guest(), nullptr);
}

}  // namespace
}  // namespace ckptd::transport
