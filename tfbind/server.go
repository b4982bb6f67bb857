package tfbind

// Server is a server of TensorFlow's distributed runtime in this process. It runs until the
// process ends, because TensorFlow cannot stop a server (TF_ServerStop is not implemented, and
// deleting a started server may abort the process, in 2.21). Anyone who reaches its port can run
// graphs: TensorFlow's servers listen on all addresses, without encryption or authentication.
// Its sessions should have the devices of this server only (device_filters) and exchange values
// by collectives: a server that asks for a tensor of a failed run waits until its own run ends.
type Server struct{ target string }

// NewServer starts a server. def is a serialized tensorflow.ServerDef.
func NewServer(def []byte) (*Server, error) {
	if err := library(); err != nil {
		return nil, err
	}
	target, err := capi.newServer(def)
	if err != nil {
		return nil, err
	}
	return &Server{target}, nil
}

// LoadSavedModel is like the function of this name. The session runs on the server, so its
// graphs can exchange tensors with those of the other servers.
func (s *Server) LoadSavedModel(dir string, tags []string, config []byte) (*Session, error) {
	return loadSavedModel(s.target, dir, tags, config)
}
