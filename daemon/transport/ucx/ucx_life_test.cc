// How a stream ends: its worker goes when UCX has let go of everything, or after a while. UCX's flush of a worker is
// played by the test; all else is UCX's own.
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <utility>

#include "daemon/base/mutex.h"
#include "daemon/os/socket_address.h"
#include "daemon/transport/ucx/ucp_calls.h"
#include "daemon/transport/ucx/ucx_pair.h"
#include "daemon/transport/ucx/ucx_stream.h"

namespace ckptd::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// What UCX's functions know of the test.
struct Played {
  const UcpCalls* real = nullptr;
  bool lets_go = false;  // at once
  std::optional<ucp_request_param_t> flush;
  std::string calls;
  char request[64]{};  // in progress
};
Played* played = nullptr;

ucs_status_ptr_t PlayFlush(ucp_worker_h, const ucp_request_param_t* how) {
  played->calls += "flush ";
  if (played->lets_go) return UCS_STATUS_PTR(UCS_OK);
  played->flush = *how;
  return played->request;
}
void PlayFree(void* request) {
  if (request != played->request) played->real->ucp_request_free(request);
}
ucs_status_ptr_t PlayClose(ucp_ep_h endpoint, const ucp_request_param_t* how) {
  played->calls += "close ";
  return played->real->ucp_ep_close_nbx(endpoint, how);
}
void PlayDestroy(ucp_worker_h worker) {
  played->calls += "destroy ";
  played->real->ucp_worker_destroy(worker);
}

class UcxLifeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoUcx(); !why.empty()) GTEST_SKIP() << "skipped: " << why;
    played_.real = *LoadUcp(TestUcx());
    played = &played_;
    ucp_ = *played_.real;
    ucp_.ucp_worker_flush_nbx = PlayFlush;
    ucp_.ucp_request_free = PlayFree;
    ucp_.ucp_ep_close_nbx = PlayClose;
    ucp_.ucp_worker_destroy = PlayDestroy;
    MakeContext();
    peer_ = MustOpenUcx();
    peer_->Serve([this](std::shared_ptr<BulkGuest> guest, const std::string& hello) {
      guest->Answer(hello);
      MutexLock lock(mutex_);
      guest_ = std::move(guest);
    });
    Connect();
  }
  void TearDown() override {
    if (stream_ && !gone_) {
      stream_->CutOff();
      EXPECT_TRUE(Until([this] { return gone_; }, seconds(5)));
    }
    stream_.reset();
    {
      MutexLock lock(mutex_);
      guest_ = nullptr;
    }
    peer_.reset();
    mailbox_.reset();
    loop_.reset();
    if (context_ != nullptr) ucp_.ucp_cleanup(context_);
  }
  void MakeContext() {
    ucp_config_t* config = nullptr;
    ASSERT_EQ(ucp_.ucp_config_read(nullptr, nullptr, &config), UCS_OK);
    ASSERT_EQ(ucp_.ucp_config_modify(config, "NET_DEVICES", "lo"), UCS_OK);
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    ASSERT_EQ(ucp_.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_), UCS_OK);
    ucp_.ucp_config_release(config);
  }
  void Connect() {
    const UcxHome home{ucp_, context_, *loop_, mailbox_};
    auto made = UcxStream::Make(home, "test", {[](const absl::StatusOr<std::string>&) {}, [this] { gone_ = true; }});
    ASSERT_TRUE(made.ok()) << made.status();
    stream_ = *std::move(made);
    const auto to = ParseSocketAddress("127.0.0.1", peer_->port());
    ASSERT_TRUE(to.ok()) << to.status();
    ASSERT_TRUE(stream_->Dial(to->get(), to->size, "hello").ok());
    ASSERT_TRUE(Until([this] { return stream_->greeted(); }, seconds(10)));
  }
  bool Until(const std::function<bool()>& so, Nanos patience) {
    const Nanos end = SystemClock().Monotonic() + patience;
    while (!so() && SystemClock().Monotonic() < end) EXPECT_TRUE(loop_->RunOnce(milliseconds(5)).ok());
    return so();
  }

  Played played_;
  UcpCalls ucp_;
  ucp_context_h context_ = nullptr;
  std::unique_ptr<Loop> loop_ = *Loop::Create(SystemClock(), 64);
  std::shared_ptr<Mailbox> mailbox_ = Mailbox::Create(*loop_);
  Mutex mutex_;
  std::shared_ptr<BulkGuest> guest_ CKPTD_GUARDED_BY(mutex_);
  std::unique_ptr<UcxPort> peer_;
  std::shared_ptr<UcxStream> stream_;
  bool gone_ = false;
};

TEST_F(UcxLifeTest, TheWorkerStaysUntilUcxHasLetGo) {
  stream_->CutOff();
  ASSERT_TRUE(Until([this] { return played_.flush.has_value(); }, seconds(10)));
  EXPECT_FALSE(Until([this] { return gone_; }, milliseconds(200)));
  EXPECT_EQ(played_.calls, "close flush ");
  played_.flush->cb.send(played_.request, UCS_OK, played_.flush->user_data);
  stream_->CutOff();  // it has work
  EXPECT_TRUE(Until([this] { return gone_; }, seconds(1)));
  EXPECT_EQ(played_.calls, "close flush destroy ");
}

TEST_F(UcxLifeTest, WhereNothingIsLeftItGoesAtOnce) {
  played_.lets_go = true;
  stream_->CutOff();
  EXPECT_TRUE(Until([this] { return gone_; }, seconds(1)));
  EXPECT_EQ(played_.calls, "close flush destroy ");
}

TEST_F(UcxLifeTest, AUcxThatLetsNothingGoIsNotWaitedForForEver) {
  const Nanos begin = SystemClock().Monotonic();
  stream_->CutOff();
  EXPECT_TRUE(Until([this] { return gone_; }, seconds(10)));
  EXPECT_GE(SystemClock().Monotonic() - begin, milliseconds(1900));
  EXPECT_EQ(played_.calls, "close flush destroy ");
}

}  // namespace
}  // namespace ckptd::transport
