package train

// ranked reports whether the training has several ranks. rank is the index of this one.
func (c *Config) ranked() (rank int, ranked bool) {
	if c.Cluster == nil || len(c.Cluster.Workers) == 1 {
		return 0, false
	}
	return c.Cluster.Rank, true
}

// checkCluster returns an error for options that do not work with several ranks.
func (c *Config) checkCluster() error {
	if c.Cluster == nil {
		return nil
	}
	if err := c.Cluster.Check(); err != nil {
		return err
	}
	if _, ranked := c.ranked(); !ranked {
		return nil
	}
	alone := func(option string, value any) error {
		return refuse(option, value, "works only in a training of one process, without {Config.Cluster}")
	}
	switch {
	case c.Autotune != "":
		return alone("Config.Autotune", c.Autotune)
	case c.CacheFeatures == On:
		return alone("Config.CacheFeatures", c.CacheFeatures)
	case c.Budget.Limit != 0:
		return alone("Budget.Limit", c.Budget.Limit)
	case c.resets():
		return alone("Reset.Depth", c.Reset.Depth)
	case c.OnOutOfMemory != "":
		return alone("Config.OnOutOfMemory", c.OnOutOfMemory)
	case c.Loop.Batch < len(c.Cluster.Workers):
		return refuse("Loop.Batch", c.Loop.Batch, "the batch is shared by %d ranks, so some would have no sample; "+
			"expected at least that many", len(c.Cluster.Workers))
	}
	return nil
}

// checkParts returns an error if the last batch of a pass has too few samples for the ranks.
func (t *training) checkParts() error {
	n := t.samples.Len() % t.Loop.Batch
	if _, ranked := t.ranked(); !ranked || n == 0 || t.Loop.DropRemainder || n >= len(t.Cluster.Workers) {
		return nil
	}
	return refuse("Loop.DropRemainder", false, "the last batch of a pass has %d samples for %d ranks; drop it, or use "+
		"another batch size", n, len(t.Cluster.Workers))
}

// asRank adapts the options to a training with several ranks. Only the first rank writes results.
func (c *Config) asRank() {
	rank, ranked := c.ranked()
	if !ranked {
		return
	}
	c.Session.Cluster, c.ChooseSteps, c.CacheFeatures = c.Cluster, false, ""
	if rank > 0 {
		c.Out, c.OutVersion, c.OutAdapter, c.Progress = "", "", "", nil
	}
}

// stopped reports whether a rank has requested a stop.
func (t *training) stopped() bool {
	group := t.session.Ranks()
	return group != nil && group.Stopped() != nil
}

// leave waits until all ranks have finished with the same result. A rank reports a complete training to
// its supervisor early, because a supervisor that does not know of it would restart a killed process,
// which would wait for ranks that have ended. Ranks other than the first report before they wait,
// because the first rank ends even if another one is lost.
func (t *training) leave(r Result, result error) error {
	group := t.session.Ranks()
	if group == nil {
		return nil
	}
	defer t.worker.Busy()()
	done := func() {
		if result == nil {
			t.worker.Done(r)
		}
	}
	if group.Rank() > 0 {
		done()
	}
	err := group.Leave(done)
	if err != nil && (group.Rank() == 0 || result != nil) { // the result is complete
		t.Loop.Log.Warn("another rank ended before it noticed the end of the training", "error", err)
		return nil
	}
	return err
}
