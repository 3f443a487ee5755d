#include "daemon/rpc/server.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

#include "daemon/base/errors.h"
#include "daemon/base/mutex.h"
#include "proto/ckptd/v1/admin.grpc.pb.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;

// Answers what the tests need; all else is UNIMPLEMENTED by the sentence.
class FakeBackend final : public AdminBackend {
 public:
  ~FakeBackend() override {
    for (std::thread& thread : threads_) thread.join();
  }

  void Status(AdminCallPtr call, v1::StatusRequest request, Done<v1::StatusView> done) override {
    time_left = call->time_left();
    v1::StatusView view;
    view.mutable_agent()->set_node("node-7");
    for (int i = 0; request.job() == "huge" && i < 40000; ++i) view.mutable_agent()->add_notes(std::string(100, 'x'));
    done(view);
  }
  void List(AdminCallPtr, v1::ListRequest request, Done<v1::ListResponse> done) override {
    done(Error(ErrorCode::JOB_OWNED, "job " + request.job() + " is another user's"));
  }
  // Never answers by itself: as a flush that does not become durable.
  void Flush(AdminCallPtr call, v1::FlushRequest, Done<v1::FlushResponse> done) override {
    threads_.emplace_back([call, done] {
      while (!call->cancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      done(Error(ErrorCode::CANCELLED, "nobody waits"));
    });
  }
  void Drain(AdminCallPtr, v1::DrainRequest, Done<v1::DrainResponse> done) override { done(Missing()); }
  void Pin(AdminCallPtr, v1::PinRequest, Done<v1::PinResponse> done) override { done(Missing()); }
  void Unpin(AdminCallPtr, v1::UnpinRequest, Done<v1::UnpinResponse> done) override { done(Missing()); }
  void Remove(AdminCallPtr, v1::RemoveRequest, Done<v1::RemoveResponse> done) override { done(Missing()); }
  void Gc(AdminCallPtr, v1::GcRequest, Done<v1::GcResponse> done) override { done(Missing()); }
  void Version(AdminCallPtr, v1::VersionRequest, Done<v1::VersionResponse> done) override { done(Missing()); }
  void Trace(AdminCallPtr, v1::TraceRequest, Done<v1::TraceResponse> done) override { done(Missing()); }
  void Inspect(AdminStreamPtr<v1::InspectResponse>, v1::InspectRequest, Ended ended) override { ended(Missing()); }
  // Three messages, then the end with damage.
  void Verify(AdminStreamPtr<v1::VerifyProgress> stream, v1::VerifyRequest, Ended ended) override {
    threads_.emplace_back([stream, ended] {
      for (uint64_t i = 1; i <= 3; ++i) {
        v1::VerifyProgress progress;
        progress.set_bytes_done(i);
        EXPECT_TRUE(stream->Write(progress));
      }
      ended(Error(ErrorCode::STORAGE_IO, "the disk failed"));
    });
  }
  // Writes until it is told to stop.
  void Restore(AdminStreamPtr<v1::RestoreResponse> stream, v1::RestoreRequest, Ended ended) override {
    threads_.emplace_back([this, stream, ended] {
      v1::RestoreResponse response;
      response.mutable_data()->set_data(std::string(100000, 'x'));
      while (stream->Write(response)) ++written;
      ended(Error(ErrorCode::CANCELLED, "nobody reads"));
    });
  }

  std::atomic<int> written = 0;
  Nanos time_left{0};

 private:
  static absl::Status Missing() { return Error(ErrorCode::NOT_FOUND, "not here"); }
  std::vector<std::thread> threads_;
};

class ServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/ckptd-rpc-XXXXXX";
    dir_ = mkdtemp(name);
    path_ = dir_ + "/admin.sock";
    loop_ = *Loop::Create(SystemClock(), 64);
    auto server = AdminServer::Start(*loop_, backend_, {.path = path_, .mode = 0640}, {.calls = 2, .streams = 1});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    runner_ = std::thread([this] { EXPECT_TRUE(loop_->Run().ok()); });
  }
  void TearDown() override {
    loop_->Stop();
    runner_.join();
    server_.reset();
    rmdir(dir_.c_str());
  }

  std::unique_ptr<v1::Admin::Stub> Connect() {
    auto fd = ConnectUnixStream(path_);
    EXPECT_TRUE(fd.ok()) << fd.status();
    return v1::Admin::NewStub(grpc::CreateInsecureChannelFromFd("ckptd", fd->Release()));
  }

  FakeBackend backend_;
  std::string dir_;
  std::string path_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<AdminServer> server_;
  std::thread runner_;
};

TEST_F(ServerTest, AnswersAndPassesTheDeadline) {
  auto stub = Connect();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  v1::StatusView view;
  grpc::Status status = stub->Status(&context, {}, &view);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(view.agent().node(), "node-7");
  EXPECT_GT(backend_.time_left, std::chrono::seconds(20));
  EXPECT_LE(backend_.time_left, std::chrono::seconds(31));  // gRPC rounds up
}

TEST_F(ServerTest, AnErrorKeepsItsSentenceAndItsRow) {
  auto stub = Connect();
  grpc::ClientContext context;
  v1::ListRequest request;
  request.set_job("gpt");
  v1::ListResponse response;
  grpc::Status status = stub->List(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(status.error_message(), "job gpt is another user's");
  auto row = context.GetServerTrailingMetadata().find(kErrorMetadata);
  ASSERT_NE(row, context.GetServerTrailingMetadata().end());
  EXPECT_EQ(std::string(row->second.data(), row->second.size()), "JOB_OWNED");
}

TEST_F(ServerTest, AnAnswerThatIsTooLongIsASentence) {
  auto stub = Connect();
  grpc::ClientContext context;
  v1::StatusRequest request;
  request.set_job("huge");
  v1::StatusView view;
  grpc::Status status = stub->Status(&context, request, &view);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("1 MiB"));
}

TEST_F(ServerTest, AStreamComesInOrderWithItsEnd) {
  auto stub = Connect();
  grpc::ClientContext context;
  auto reader = stub->Verify(&context, {});
  v1::VerifyProgress progress;
  for (uint64_t i = 1; i <= 3; ++i) {
    ASSERT_TRUE(reader->Read(&progress));
    EXPECT_EQ(progress.bytes_done(), i);
  }
  EXPECT_FALSE(reader->Read(&progress));
  EXPECT_EQ(reader->Finish().error_message(), "the disk failed");
}

TEST_F(ServerTest, AClientThatDoesNotReadHoldsTheWriterAndThenStopsIt) {
  auto stub = Connect();
  grpc::ClientContext context;
  auto reader = stub->Restore(&context, {});
  v1::RestoreResponse response;
  ASSERT_TRUE(reader->Read(&response));
  grpc::ClientContext second;  // one stream at a time here
  auto refused = stub->Verify(&second, {});
  v1::VerifyProgress progress;
  EXPECT_FALSE(refused->Read(&progress));
  EXPECT_EQ(refused->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_LT(backend_.written, 1000);  // a writer that does not wait would fill the memory
}

TEST_F(ServerTest, StoppingEndsACallThatNobodyAnswers) {
  auto stub = Connect();
  grpc::ClientContext context;
  v1::FlushResponse response;
  grpc::Status status;
  std::thread client([&] { status = stub->Flush(&context, {}, &response); });
  grpc::ClientContext probe;  // answered after Flush has come in, on the same connection
  v1::StatusView view;
  EXPECT_TRUE(stub->Status(&probe, {}, &view).ok());
  loop_->Stop();
  server_->Stop(Nanos(0));
  client.join();
  EXPECT_FALSE(status.ok());
}

TEST_F(ServerTest, TheSocketHasItsModeAndAnAgentThatLivesKeepsIt) {
  struct stat info {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640);
  auto loop = *Loop::Create(SystemClock(), 4);
  auto second = AdminServer::Start(*loop, backend_, {.path = path_});
  EXPECT_EQ(CodeOf(second.status()), ErrorCode::REFUSED) << second.status();
}

TEST(ConnectTest, SaysWhyNobodyAnswers) {
  EXPECT_EQ(CodeOf(ConnectUnixStream("/tmp/ckptd-rpc-no-such.sock").status()), ErrorCode::AGENT_UNREACHABLE);
  EXPECT_EQ(CodeOf(ConnectUnixStream("/tmp").status()), ErrorCode::AGENT_UNREACHABLE);
  EXPECT_EQ(CodeOf(ConnectUnixStream(std::string(200, 'x')).status()), ErrorCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace ckptd
