package cpu

// operations holds the operands of each operation while it runs, and its loops as values bound once, so that handing
// them to the workers allocates nothing.
type operations struct {
	zero                    zeroOp
	zeroBytes, copyBytes    bytesOp
	embed, embedBackward    rowsOp
	gather, scatter, argMax rowsOp
	decode                  decodeOp
	from                    fromRow
	route                   routeOp
	combine                 combineOp
	balance                 balanceOp
	columns                 columnsOp
	norm                    normOp
	normBackward            normBackwardOp
	headNorm                headNormOp
	glu                     gluOp
	groups                  groupsOp
	elements                elementsOp
	thin                    []float32 // see times
	rotate                  rotateOp
	attention               attentionOp
	pages                   pagesOp
	maps                    mapsOp
	conv                    convOp
	delta                   deltaOp
	mix                     mixOp
	project                 projectOp
	draw                    drawOp
	loss                    lossOp
	squared                 squaredOp
	params                  paramsOp
	quantize                quantizeOp
}

func (o *operations) bind(s *Stream) {
	o.zero.run = o.zero.rows
	o.zeroBytes.run = o.zeroBytes.zero
	o.copyBytes.run = o.copyBytes.copy
	o.embed.s, o.embed.run = s, o.embed.embed
	o.embedBackward.s, o.embedBackward.run = s, o.embedBackward.addStrip
	o.gather.s, o.gather.run = s, o.gather.gather
	o.scatter.s, o.scatter.run = s, o.scatter.scatter
	o.argMax.s, o.argMax.run = s, o.argMax.argMax
	o.decode.run = o.decode.rows
	o.route.choose, o.route.back = o.route.rows, o.route.backward
	o.combine.s, o.combine.sum, o.combine.back = s, o.combine.tokens, o.combine.backward
	o.balance.s, o.balance.run = s, o.balance.rows
	o.columns.s, o.columns.run = s, o.columns.strip
	o.norm.s, o.norm.run = s, o.norm.rows
	o.normBackward.s, o.normBackward.run, o.normBackward.sum = s, o.normBackward.rows, o.normBackward.strip
	o.headNorm.s, o.headNorm.fwd, o.headNorm.bwd, o.headNorm.sum = s, o.headNorm.forward, o.headNorm.backward, o.headNorm.strip
	o.glu.s, o.glu.fwd, o.glu.bwd = s, o.glu.forward, o.glu.backward
	o.groups.split, o.groups.join = o.groups.deinterleave, o.groups.interleave
	o.elements.dropout = o.elements.dropped
	o.elements.s, o.elements.add, o.elements.scale, o.elements.cap = s, o.elements.added, o.elements.scaled, o.elements.capped
	o.rotate.s, o.rotate.run = s, o.rotate.rows
	o.attention.s, o.attention.fwd, o.attention.bwd, o.attention.sum = s, o.attention.forward, o.attention.backward, o.attention.sinkGrads
	o.pages.s, o.pages.run = s, o.pages.one
	o.maps.s, o.maps.average, o.maps.grads, o.maps.sum = s, o.maps.averaged, o.maps.gradients, o.maps.sinkGrads
	o.conv.s, o.conv.fwd, o.conv.bwd = s, o.conv.forward, o.conv.backward
	o.delta.s, o.delta.fwd, o.delta.bwd = s, o.delta.forward, o.delta.backward
	o.mix.s, o.mix.run = s, o.mix.rows
	o.project.s, o.project.run = s, o.project.piece
	o.draw.s, o.draw.run = s, o.draw.piece
	o.loss.s, o.loss.run = s, o.loss.piece
	o.squared.s, o.squared.run = s, o.squared.rows
	o.quantize.run = o.quantize.piece
	o.params.s, o.params.norm, o.params.adam = s, o.params.squares, o.params.update
}
