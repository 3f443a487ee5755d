// The etcd source where both sides show certificates.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/membership/etcd_fixture.h"
#include "proto/etcd/rpc.grpc.pb.h"

namespace ckptd::membership {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

// Certificates made for the test: an authority, a server's for 127.0.0.1, a client's, and an authority nobody knows.
class EtcdTlsTest : public EtcdTest {
 protected:
  void SetUp() override {
    if (EtcdProgram().empty()) GTEST_SKIP() << kNoEtcd;
    if (access(kOpenssl, X_OK) != 0) GTEST_SKIP() << "skipped: no " << kOpenssl << " (package openssl)";
    std::string name = "/dev/shm/ckptd-certs-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
    MakeAuthority("ca");
    MakeAuthority("stranger");
    Sign("server", "subjectAltName=IP:127.0.0.1");
    Sign("client", "extendedKeyUsage=clientAuth");
    loop_ = *Loop::Create(SystemClock(), 64);
    server_ = std::make_unique<EtcdServer>(
        std::vector<std::string>{"--cert-file=" + File("server.pem"), "--key-file=" + File("server.key"),
                                 "--client-cert-auth", "--trusted-ca-file=" + File("ca.pem")});
  }
  void TearDown() override {
    server_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(dir_, ignored);
  }

  static constexpr char kOpenssl[] = "/usr/bin/openssl";

  [[nodiscard]] std::string File(const std::string& name) const { return dir_ + "/" + name; }
  void Openssl(const std::string& arguments) const {
    const std::string command = absl::StrCat("cd ", dir_, " && ", kOpenssl, " ", arguments, " 2>> log");
    ASSERT_EQ(std::system(command.c_str()), 0) << command;  // NOLINT(cert-env33-c): of constants
  }
  void MakeAuthority(const std::string& name) const {
    Openssl(absl::StrCat("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=", name,
                         " -keyout ", name, ".key -out ", name, ".pem"));
  }
  void Sign(const std::string& name, const std::string& extension) const {
    Openssl(absl::StrCat("req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=", name, " -keyout ", name,
                         ".key -out ", name, ".csr"));
    std::ofstream(File(name + ".ext")) << extension << "\n";
    Openssl(absl::StrCat("x509 -req -in ", name, ".csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ",
                         name, ".ext -out ", name, ".pem"));
  }
  [[nodiscard]] EtcdOptions With(const std::string& ca, const std::string& client) const {
    EtcdOptions options = Options(server_->endpoint());
    options.ca = File(ca);
    options.cert = client.empty() ? "" : File(client + ".pem");
    options.key = client.empty() ? "" : File(client + ".key");
    return options;
  }

  std::string dir_;
};

TEST_F(EtcdTlsTest, OnlyWhoIsKnownToBothSidesIsServed) {
  auto known = Client(With("ca.pem", "client"));
  ASSERT_TRUE(Until([&] { return known->Newest(kPrefix).ok(); })) << known->Newest(kPrefix).status();
  EXPECT_FALSE(Client(With("ca.pem", ""))->Newest(kPrefix).ok()) << "etcd wants a certificate";
  const absl::Status strange = Client(With("stranger.pem", "client"))->Newest(kPrefix).status();
  EXPECT_EQ(CodeOf(strange), ErrorCode::TIMEOUT) << "a server that a stranger signed";
  EXPECT_THAT(strange.message(), HasSubstr("failed to connect"));
  EtcdOptions plain = Options("http" + server_->endpoint().substr(5));
  EXPECT_FALSE(Client(plain)->Newest(kPrefix).ok());
  auto a = Join("a", With("ca.pem", "client"));
  ASSERT_TRUE(UntilWell(*a));
}

// Everything by a new authority. The member's key comes first; what is missing, or does not belong together, is said.
TEST_F(EtcdTlsTest, FilesThatAreExchangedAreReadWithoutARestart) {
  auto a = Join("a", With("ca.pem", "client"));
  ASSERT_TRUE(UntilWell(*a));
  const auto move = [this](const char* from, const char* to) { std::filesystem::rename(File(from), File(to)); };
  MakeAuthority("ca");
  Sign("server", "subjectAltName=IP:127.0.0.1");
  move("client.pem", "old.pem");
  Sign("client", "extendedKeyUsage=clientAuth");
  move("client.pem", "new.pem");
  EXPECT_FALSE(Until([&] { return !a->view()->source.ok(); }, seconds(kTtl))) << "its connection stands";
  server_->Kill();
  server_->Start();
  EXPECT_TRUE(Until([&] { return absl::StrContains(a->view()->source.message(), "client.pem: No such file"); }))
      << a->view()->source;
  move("old.pem", "client.pem");
  EXPECT_TRUE(Until([&] { return absl::StrContains(a->view()->source.message(), "is peers.etcd_key the key of "); }))
      << a->view()->source;
  EXPECT_TRUE(a->self().status.ok()) << "etcd has not said otherwise: " << a->self().status;
  move("new.pem", "client.pem");
  ASSERT_TRUE(UntilWell(*a)) << a->self().status;
  EXPECT_TRUE(UntilNames(*a, {"a"}));
}

// What an operator does with etcdctl: whose certificate says "client" may read and write what is under the prefix.
class Grants {
 public:
  explicit Grants(const EtcdOptions& options)
      : auth_(etcdserverpb::Auth::NewStub(grpc::CreateChannel(
            options.endpoints.substr(8),
            grpc::SslCredentials({*ReadPem(PosixFiles(), options.ca), *ReadPem(PosixFiles(), options.key),
                                  *ReadPem(PosixFiles(), options.cert)})))) {}

  void User(const std::string& name, const std::string& role) {
    etcdserverpb::AuthUserAddRequest user;
    user.set_name(name);
    user.set_password("of nobody");
    Call(&etcdserverpb::Auth::Stub::UserAdd, user);
    etcdserverpb::AuthUserGrantRoleRequest grant;
    grant.set_user(name);
    grant.set_role(role);
    Call(&etcdserverpb::Auth::Stub::UserGrantRole, grant);
  }
  void Role(const std::string& name) {
    etcdserverpb::AuthRoleAddRequest role;
    role.set_name(name);
    Call(&etcdserverpb::Auth::Stub::RoleAdd, role);
  }
  void Prefix(const std::string& role, const std::string& from, const std::string& to) {
    etcdserverpb::AuthRoleGrantPermissionRequest grant;
    grant.set_name(role);
    grant.mutable_permission()->set_type(etcdserverpb::Permission::READWRITE);
    grant.mutable_permission()->set_key(from);
    grant.mutable_permission()->set_range_end(to);
    Call(&etcdserverpb::Auth::Stub::RoleGrantPermission, grant);
  }
  void Enable() { Call(&etcdserverpb::Auth::Stub::AuthEnable, etcdserverpb::AuthEnableRequest()); }

 private:
  template <typename Method, typename Request>
  void Call(Method method, const Request& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kLong);
    context.set_wait_for_ready(true);
    etcdserverpb::AuthResponse response;
    const grpc::Status status = ((*auth_).*method)(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }

  const std::unique_ptr<etcdserverpb::Auth::Stub> auth_;
};

TEST_F(EtcdTlsTest, WhoMayReadThePrefixOnlyWatchesOnWhenAWatchIsBroken) {
  Grants grants(With("ca.pem", "client"));
  grants.Role("root");
  grants.User("root", "root");
  grants.Role("ckptd");
  grants.Prefix("ckptd", kPrefix, "/ckptd/test0");
  grants.User("client", "ckptd");
  grants.Enable();
  EXPECT_EQ(CodeOf(Client(With("ca.pem", "client"))->List("/", 10).status()), ErrorCode::PERMISSION);
  auto a = Join("a", With("ca.pem", "client"));
  ASSERT_TRUE(UntilWell(*a));
  server_->Kill();
  ASSERT_TRUE(Until([&] { return !a->view()->source.ok(); }));
  server_->Start();
  auto b = Join("b", With("ca.pem", "client"));
  EXPECT_TRUE(UntilNames(*a, {"a", "b"})) << a->view()->source;
}

TEST_F(EtcdTlsTest, AFileThatIsNoCertificateIsSaid) {
  EXPECT_EQ(CodeOf(ReadPem(PosixFiles(), File("log")).status()), ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(CodeOf(ReadPem(PosixFiles(), File("nothing")).status()), ErrorCode::NOT_FOUND);
  EXPECT_EQ(*ReadPem(PosixFiles(), ""), "");
  EXPECT_EQ(CodeOf(ConnectEtcd(PosixFiles(), With("nothing", "")).status()), ErrorCode::NOT_FOUND);
}

}  // namespace
}  // namespace ckptd::membership
